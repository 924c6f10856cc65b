# SPDX-License-Identifier: MIT OR Apache-2.0
set -e
cd /sys/bus/cxl/devices
i=0; until ls */dpa_size >/dev/null 2>&1; do i=$((i+1)); [ $i -lt 100 ] || { echo no CXL memory >&2; exit 1; }; sleep 0.1; done
region=$(cat decoder0.0/create_ram_region); echo $region > decoder0.0/create_ram_region
set -- */dpa_size; endpoint=${1%/*}
size=$((0x10000000))
echo ram > $endpoint/mode; echo $size > $endpoint/dpa_size
echo 256 > $region/interleave_granularity; echo 1 > $region/interleave_ways; echo $size > $region/size
echo $endpoint > $region/target0; echo 1 > $region/commit
echo $region > /sys/bus/cxl/drivers/cxl_region/bind
set -- /sys/bus/dax/devices/dax*/target_node; node=$(cat $1)
# Its node, beside those that the guest had.
i=0; until grep -q 'MemTotal: *[1-9]' /sys/devices/system/node/node$node/meminfo 2>/dev/null; do i=$((i+1)); [ $i -lt 100 ] || { echo the CXL memory did not go online as node $node >&2; exit 1; }; sleep 0.1; done
insmod $(ls /usr/lib/modules/*/updates/ptat.ko) node=$node pmd=$PMD room=$ROOM
