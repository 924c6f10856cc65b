# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=sh
#
# What each distribution calls the packages that setup.sh asks for: Debian's name, Ubuntu's (`=`: the same), Fedora's. `-`: there is
# none, or none is known; what needs it is skipped. Sourced by setup.sh. Debian's are proven on 12 and 13; the others
# are as far as we know them, and nobody has tried them.
package_names='
rustc-web            -                    rust
cargo-web            -                    cargo
rustfmt-web          -                    rustfmt
make                 =                    make
gcc                  =                    gcc
libc6-dev            =                    glibc-static
ca-certificates      =                    ca-certificates
qemu-system-x86      =                    qemu-system-x86-core
qemu-system-arm      =                    qemu-system-aarch64-core
libipt-dev           =                    libipt-devel
chromium             -                    chromium
chromium-driver      -                    chromedriver
xz-utils             =                    xz
linux-perf           linux-tools-generic  perf
git                  =                    git
gdb                  =                    gdb
babeltrace2          =                    babeltrace2
systemtap-sdt-dev    =                    systemtap-sdt-devel
flex                 =                    flex
bison                =                    bison
bc                   =                    bc
libelf-dev           =                    elfutils-libelf-devel
libelf1              libelf1t64           elfutils-libelf
trace-cmd            =                    trace-cmd
g++                  =                    gcc-c++
clang                =                    clang
llvm                 =                    llvm
libclang-rt-dev      -                    compiler-rt
autofdo              =                    -
golang-go            =                    golang
cmake                =                    cmake
yasm                 =                    yasm
dpkg-dev             =                    dpkg-dev
nodejs               =                    nodejs
python3-pip          =                    python3-pip
python3-venv         =                    python3
default-jre-headless =                    java-21-openjdk-headless
mmdebstrap           =                    -
e2fsprogs            =                    e2fsprogs
qemu-utils           =                    qemu-img
libcap2-bin          =                    libcap
npm                  =                    nodejs-npm
'

# distribution [FILE]: debian, ubuntu or fedora, by an os-release; `other` if it is none of them, nor like one.
distribution() {
	file=${1:-/etc/os-release}
	# shellcheck disable=SC1090 # any machine's
	for id in $([ ! -r "$file" ] || (. "$file" && echo "${ID:-} ${ID_LIKE:-}")); do
		case $id in debian | ubuntu | fedora) echo "$id" && return ;; esac
	done
	echo other
}

# package_name DISTRIBUTION NAME: its name for the package that Debian calls NAME; nothing if there is none. A name that is not in the
# table is Debian's own, and Ubuntu's.
package_name() {
	echo "$package_names" | awk -v distribution="$1" -v name="$2" '
		$1 == name {
			found = 1
			there = distribution == "ubuntu" ? $2 : distribution == "fedora" ? $3 : $1
			if (there == "=") there = name
			if (there != "-") print there
		}
		END { if (!found && distribution != "fedora") print name }'
}
