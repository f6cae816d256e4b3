"""Providers: external models behind an HTTP API, and a scripted one."""
