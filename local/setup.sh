#!/bin/sh
# Prepares a Debian or Ubuntu machine for `make run` or `make test`. It installs only what is missing.
#
#   local/setup.sh run     Python packages, a database server, Apertium
#   local/setup.sh test    the same, the tools of the tests, and MySQL beside MariaDB
#
# When PARTWAY_DATABASE_URL is set, no database server is installed.

set -eu
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" # Debian installs servers in these folders.

purpose=${1:-}
cache=${PARTWAY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/partway}
log=.run/setup.log

fail() {
    echo "setup: $*" >&2
    exit 1
}

has() {
    command -v "$1" >/dev/null
}

# Prints what is done, and shows the output of the command only when it fails.
quietly() {
    echo "$1 …"
    shift
    if ! "$@" >"$log" 2>&1 </dev/null; then
        tail -n 15 "$log" | sed 's/^/    /' >&2
        return 1
    fi
}

find_python() {
    for python in python3 python3.14 python3.13 python3.12 python3.11; do
        if has "$python" && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            return
        fi
    done
    fail "Python 3.11 or newer is needed, and the PATH has none"
}

# Sets $root to the prefix that runs a command as root; fails when there is no way to do so.
find_root() {
    if [ "$(id -u)" = 0 ]; then
        root=env
    elif has sudo && sudo -n true 2>/dev/null; then
        root="sudo -n env"
    else
        return 1
    fi
}

keyring() {
    ls /usr/share/keyrings/debian-archive-keyring.* 2>/dev/null | head -n 1
}

needs_mysql() {
    [ "$purpose" = test ] && [ -z "${PARTWAY_DATABASE_URL:-}" ] || return 1
    # mysqld is also an old name of MariaDB.
    has mysqld && ! mysqld --no-defaults --version | grep -q MariaDB && return 1
    [ ! -d "$cache/mysql-sid" ]
}

missing_packages() {
    if ! has .venv/bin/python && ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
    fi
    if ! has apertium || ! apertium -l | grep -q '^ *eng-spa$'; then
        echo apertium apertium-eng-spa
    fi
    if [ -z "${PARTWAY_DATABASE_URL:-}" ]; then
        # The client package contains my_print_defaults, which mariadb-install-db needs.
        if ! has mariadbd && ! has mysqld; then
            echo mariadb-server-core mariadb-client-core
        elif has mariadbd && ! has my_print_defaults; then
            echo mariadb-client-core
        fi
    fi
    if [ "$purpose" = test ]; then
        has apertium-apy || echo apertium-apy
        # spin writes the checker of the model in C. gcc alone comes without headers.
        has spin && has cc || echo spin gcc libc6-dev
        # Chaos runs use it to set the clock of a single program wrong.
        has faketime || echo faketime
        # The pages are tested in a real browser, which comes without a font. The headless shell takes
        # a sixth of the time; where it cannot be installed, an installed Chromium is used.
        if ! has chromium-headless-shell && ! has google-chrome; then
            if apt-cache show chromium-headless-shell >/dev/null 2>&1 &&
                { ! has chromium || find_root; }; then
                echo chromium-headless-shell fonts-inter
            elif ! has chromium; then
                echo chromium fonts-inter
            fi
        fi
        # Ubuntu does not install it by default. Without the right to install, MySQL is left out.
        if needs_mysql && [ -z "$(keyring)" ] && find_root; then
            echo debian-archive-keyring
        fi
    fi
}

install_packages() {
    packages=$(missing_packages | tr '\n' ' ')
    [ -n "$packages" ] || return 0
    has apt-get || fail "this machine has no apt-get; please install: $packages"
    find_root || fail "please install these, then try again: sudo apt-get install $packages"
    apt="$root DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=120"
    # When the update fails, the installation may still succeed with the old list.
    quietly "Updating the list of Debian packages" $apt update || true
    # --no-remove: no package of the machine may be removed, such as a MySQL that excludes MariaDB.
    quietly "Installing $packages(about a minute)" \
        $apt install --no-install-recommends --no-remove $packages ||
        fail "apt-get could not install $packages"
}

install_python_packages() {
    stamp=.venv/installed-for-$purpose
    if .venv/bin/python -c '' 2>/dev/null; then
        cmp -s pyproject.toml "$stamp" && return
    else
        quietly "Making .venv" "$python" -m venv --clear .venv ||
            fail "no virtual environment could be made"
    fi
    extra=server
    [ "$purpose" = run ] || extra=dev
    quietly "Installing Python packages (up to a minute)" \
        .venv/bin/python -m pip install --disable-pip-version-check --editable ".[$extra]" ||
        fail "pip could not install the Python packages"
    # The packages for the tests include those for `make run`.
    cp pyproject.toml .venv/installed-for-run
    [ "$purpose" = run ] || cp pyproject.toml "$stamp"
}

# MySQL is in Debian unstable, but not in stable. To mix the two would break a machine, so the server
# and all its libraries are only unpacked into a folder, which needs no root.
unpack_mysql() {
    making=$cache/mysql-making
    rm -rf "$making"
    mkdir -p "$making/lists/partial" "$making/archives/partial" "$making/tree"
    # An empty status file: nothing counts as installed, so that no library is left out.
    : >"$making/status"
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' |
        head -n 1)
    echo "deb [signed-by=$(keyring)] ${mirror:-http://deb.debian.org/debian} sid main" \
        >"$making/sources"
    cat >"$making/conf" <<END
Dir::State "$making";
Dir::State::status "$making/status";
Dir::Cache "$making";
Dir::Etc::SourceList "$making/sources";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
APT::Sandbox::User "";
APT::Install-Recommends "false";
Acquire::Check-Valid-Until "false"; // A mirror can be out of date: its packages are signed anyway.
END
    export APT_CONFIG="$making/conf"
    apt-get -q update || return 1
    apt-get -q -y --download-only install mysql-server-core || return 1
    unset APT_CONFIG
    for package in "$making"/archives/*.deb; do
        dpkg-deb --extract "$package" "$making/tree" || return 1
    done
    mv "$making/tree" "$cache/mysql-sid" && rm -rf "$making"
}

has_tool() {
    has "$1" || [ -x "$cache/tools/usr/sbin/$1" ] || [ -x "$cache/tools/usr/bin/$1" ]
}

# nginx checks deploy/nginx.conf, and promtool checks the alerts. When installed, both packages would
# start a server, so they are only unpacked, which needs no root.
unpack_tools() {
    making=$cache/tools-making
    rm -rf "$making"
    mkdir -p "$making/tree"
    (cd "$making" && apt-get -q download nginx prometheus) || return 1
    for package in "$making"/*.deb; do
        dpkg-deb --extract "$package" "$making/tree" || return 1
    done
    # The package of promtool also contains the server, which is not needed: 50 MB.
    rm -f "$making/tree/usr/bin/prometheus"
    rm -rf "$cache/tools"
    mv "$making/tree" "$cache/tools" && rm -rf "$making"
}

install_tools() {
    has_tool nginx && has_tool promtool && return
    has apt-get && has dpkg-deb || return 0
    what="Fetching nginx and promtool (20 MB, once)"
    quietly "$what" unpack_tools && return
    # The list of packages may be out of date.
    find_root && quietly "Updating the list of Debian packages" $root apt-get update &&
        quietly "$what" unpack_tools && return
    echo "setup: nginx and promtool could not be fetched; the tests that need them are skipped" >&2
}

# The tests run without a kind of server that is missing; .run/no-KIND tells them the reason.
without() {
    echo "$2" >".run/no-$1"
    echo "setup: the tests will run without $1: $2" >&2
}

install_mysql() {
    rm -f .run/no-mysql .run/no-mariadb
    if ! has mariadbd; then
        without mariadb "MySQL is installed, and Debian allows only one of the two"
    fi
    needs_mysql || return 0
    if ! has apt-get || ! has dpkg-deb; then
        without mysql "this machine has no mysqld, and no apt-get to fetch one"
    elif [ -z "$(keyring)" ]; then
        without mysql "the packages of Debian cannot be verified: install debian-archive-keyring"
    elif ! quietly "Fetching MySQL from Debian unstable (60 MB, once)" unpack_mysql; then
        rm -rf "$cache/mysql-making"
        without mysql "it could not be fetched from Debian unstable"
    fi
}

case $purpose in
run | test) ;;
*) fail "usage: local/setup.sh run, or local/setup.sh test" ;;
esac
mkdir -p .run "$cache"
# One setup at a time, since all checkouts share the cache.
exec 9<"$cache"
flock --nonblock 9 || { echo "Waiting for another setup to end …" && flock 9; }
find_python
install_packages
install_python_packages
if [ "$purpose" = test ]; then
    install_tools
    [ -n "${PARTWAY_DATABASE_URL:-}" ] || install_mysql
fi
