"""Operators see what was settled since midnight, tenant by tenant."""

from dataclasses import dataclass

from partway.store.database import Database

# A page of tenants, and what they settled today: of one of them, and of all together.
TENANTS_READ = 50

DAY_READ = 2_000

DAYS_READ = 20_000

FIRST_TENANT = "SELECT MIN(tenant) AS tenant FROM meter WHERE tenant > %s"

# With the tenant that comes next, so that each costs one round trip.
TENANT_TODAY = """
SELECT COUNT(*) AS requests,
       CAST(COALESCE(SUM(billed = 0), 0) AS UNSIGNED) AS unbilled,
       CAST(COALESCE(SUM(IF(billed, input_characters, 0)), 0) AS UNSIGNED) AS input_characters,
       CAST(COALESCE(SUM(IF(billed, output_characters, 0)), 0) AS UNSIGNED) AS output_characters,
       (SELECT TIMESTAMPDIFF(MICROSECOND, MAX(settled_at), NOW(6)) / 1e6
        FROM   meter
        WHERE  tenant = %s) AS settled_seconds,
       (SELECT MIN(tenant) FROM meter WHERE tenant > %s) AS next_tenant
FROM   (SELECT billed, input_characters, output_characters
        FROM   meter FORCE INDEX (by_day)
        WHERE  tenant = %s
          AND  settled_at >= CAST(DATE(NOW(6)) AS DATETIME(6))
        LIMIT  %s) AS today
"""


@dataclass(frozen=True)
class TenantToday:
    """What was settled for a tenant since midnight (UTC), as far as was read."""

    tenant: str
    requests: int
    is_all: bool
    unbilled: int
    input_characters: int
    output_characters: int


@dataclass(frozen=True)
class Today:
    """A page of tenants; `after` is None where no more come, else where the next page begins.

    `settled_seconds` is how long ago the last settlement for any of them was; None without any.
    """

    tenants: list[TenantToday]
    after: str | None
    settled_seconds: float | None


async def read_today(db: Database, after: str) -> Today:
    """What was settled today for the tenants whose names come after this one."""
    found: list[TenantToday] = []
    settled: list[float] = []
    left = DAYS_READ
    tenant = (await db.read(FIRST_TENANT, (after,)))[0]["tenant"]
    for _ in range(TENANTS_READ):
        most = min(DAY_READ, left)
        if tenant is None or not most:
            break
        row = (await db.read(TENANT_TODAY, (tenant, tenant, tenant, most)))[0]
        settled.append(row.pop("settled_seconds"))
        next_tenant = row.pop("next_tenant")
        if row["requests"]:
            found.append(TenantToday(tenant=tenant, is_all=row["requests"] < most, **row))
        left -= row["requests"]
        after, tenant = tenant, next_tenant
    return Today(found, after if tenant is not None else None, min(settled, default=None))
