osmosis serve -m server:agent_loop --log ./logs
