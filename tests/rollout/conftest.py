from rollout_stubs import controller, policy

__all__ = ["controller", "policy"]
