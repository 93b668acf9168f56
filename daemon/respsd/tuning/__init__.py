"""Learning from logged traffic: rows of explorer requests in, the next policy version out.

experience    reads the rows of a lineage, lane by lane, in bounded memory
lineage       which version comes next to which, and which rows it has seen
reward        what a window earned, less the baseline's speed and the request's own
ppo_update    one Stable-Baselines3 PPO update
update        the whole job: read, guard, train, judge, store
runner        the job in a process of its own
environment   a simulated machine, with its optimum known, to try settings on
"""
