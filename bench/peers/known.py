"""The peers: what to install, the server each stands on, and what its users can lose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """One peer: its module here, its packages, its server, and three sentences on loss."""

    module: str
    packages: tuple[str, ...]
    server: str
    durable: str
    power_cut: str
    worker_killed: str


REDIS = "No, in memory."
SNAPSHOT = (
    "What Redis last saved (by default up to an hour old) survives;"
    " every write only with appendonly yes and appendfsync always."
)
MEMORY = "Nothing survives: all of it is in the memory of its processes."
COMMITTED = "All that was committed survives."

# Figures of two days compare only with versions held: newer ones come in here, by hand.
PEERS = {
    "dramatiq": Known(
        "dramatiq_group",
        ("dramatiq[redis]==2.2.1",),
        "redis",
        REDIS,
        SNAPSHOT,
        "Nothing is lost: what it had taken comes back after heartbeat_timeout (60 s).",
    ),
    "celery": Known(
        "celery_group",
        ("celery[redis]==5.7.0",),
        "redis",
        REDIS,
        SNAPSHOT,
        "What it ran is lost, unless task_acks_late and task_reject_on_worker_lost are set;"
        " what it had fetched comes back after visibility_timeout (1 h).",
    ),
    "taskiq": Known(
        "taskiq_stream",
        ("taskiq==0.13.0", "taskiq-redis==1.2.4"),
        "redis",
        REDIS,
        SNAPSHOT,
        "Nothing is lost: what it had not acknowledged comes back after idle_timeout (10 min).",
    ),
    "arq": Known(
        "arq_redis",
        ("arq==0.28.0",),
        "redis",
        REDIS,
        SNAPSHOT,
        "Nothing is lost: what it ran comes back after job_timeout and 10 s (5 min 10 s).",
    ),
    "saq": Known(
        "saq_redis",
        # It imports typing_extensions without asking for it.
        ("saq[redis]==0.26.4", "typing_extensions==4.16.0"),
        "redis",
        REDIS,
        SNAPSHOT,
        "What it ran is lost: map() gives no time limit, so it is never swept; elsewhere it is"
        " after timeout (10 s), and runs again only with retries of 2 or more.",
    ),
    "dask": Known(
        "dask_local",
        ("distributed==2026.8.0",),
        "",
        "No, in memory.",
        MEMORY,
        "Nothing is lost: the scheduler gives it to others, until allowed-failures (3);"
        " with the scheduler all is lost.",
    ),
    "ray": Known(
        "ray_local",
        ("ray==2.60.0",),
        "",
        "No, in memory.",
        MEMORY,
        "Nothing is lost: it runs again, up to max_retries (3); with its caller all is lost.",
    ),
    "procrastinate": Known(
        "procrastinate_postgresql",
        ("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.9"),
        "postgresql",
        "Yes.",
        COMMITTED,
        "What it ran stays 'doing' until somebody's own code retries what get_stalled_jobs finds.",
    ),
    "pgqueuer": Known(
        "pgqueuer_postgresql",
        # Its command does not start with typer 0.29.
        ("pgqueuer[asyncpg]==1.6.0", "typer==0.25.0"),
        "postgresql",
        "Yes.",
        COMMITTED,
        "Nothing is lost: what it ran comes back after heartbeat_timeout (30 s).",
    ),
    "django-tasks-db, MariaDB": Known(
        "django_tasks_db",
        ("django==5.2.19", "django-tasks-db[compat]==0.13.0", "mysqlclient==2.3.2"),
        "mariadb",
        "Yes.",
        COMMITTED,
        "What it ran stays RUNNING for ever, and nothing takes it up again.",
    ),
    "django-tasks-db, MySQL": Known(
        "django_tasks_db",
        ("django==5.2.19", "django-tasks-db[compat]==0.13.0", "mysqlclient==2.3.2"),
        "mysql",
        "Yes.",
        COMMITTED,
        "What it ran stays RUNNING for ever, and nothing takes it up again.",
    ),
}
