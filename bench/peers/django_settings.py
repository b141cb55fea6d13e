"""A Django project is a module of settings, and django-tasks-db runs in nothing less."""

import os

SECRET_KEY = "nothing is signed here"  # noqa: S105 - it guards nothing
USE_TZ = True
INSTALLED_APPS = ["django_tasks", "django_tasks_db"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.mysql",
        "HOST": os.environ["MYSQL_UNIX_PORT"],
        "NAME": "peers",
        "USER": "partway",
        "PASSWORD": "partway",
    }
}
