"""What a daemon does by the clock: updates of the learner, and the upkeep of its databases.

Its parts:

    job               what a job is, and how a run of it ends
    job_scheduler     runs jobs at their times, one run of each at once; none is lost, none takes the others down
    clock_watch       notices when somebody sets the machine's clock
    learning_gate     whether policies may be trained now, and why not
    update_job        trains the next learner once there is enough to learn from
    spawned_update    the trainer, in a process of its own, as that job runs it
    retention_limits  what the experience log may hold now
    upkeep            retention, backups, looks for damage
    assembly          puts a daemon's jobs together from its settings
"""
