// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a manifest, each with its name and its bearing on a comparison.
//!
//! Input: nothing. Output: [`OptionKey`] and [`SettingKey`]. A recorder writes an option by its key ([`Manifest::set`]), so a new
//! option needs a line here, and that line states what two runs with different values have in common. `recorded`, the tops of
//! reports and the reader of [`crate::OptionFacts`] take it from here.

use std::borrow::Cow;

use serde_json::Value;

use crate::Manifest;

/// How an option bears on what two runs have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bearing {
    /// It chooses what is seen: of two runs with different values, one may see what the other does not.
    Choice,
    /// It chooses the part of the run that is recorded, which reports tell at their tops ([`Manifest::recorded_part`]).
    Part,
    /// It changes what something costs, and not what is seen.
    Cost,
    /// None: it is a result, a name or a place, or it belongs to the environment or the command.
    Nothing,
}

macro_rules! keys {
    ($(#[$about:meta])* $keys:ident { $($key:ident = $name:literal, $bearing:ident, $doc:literal;)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $keys {
            $(#[doc = $doc] $key,)*
        }

        impl $keys {
            /// All of them, in the order of this file.
            pub const ALL: &'static [Self] = &[$(Self::$key,)*];

            /// The key in `manifest.json`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$key => $name,)*
                }
            }

            /// The bearing on what two runs have in common.
            #[must_use]
            pub const fn bearing(self) -> Bearing {
                match self {
                    $(Self::$key => Bearing::$bearing,)*
                }
            }

            /// The one with this key in `manifest.json`; `None` if this version knows none.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|key| key.name() == name)
            }
        }
    };
}

keys! {
    /// An option of a manifest.
    OptionKey {
        Aggregate = "aggregate", Choice, "True if BPF kept sums of calls, and no calls.";
        Backend = "backend", Choice, "The tracer of a recording of durations.";
        Before = "before", Nothing, "Commands that the guest ran before the command.";
        Begin = "begin", Choice, "The place at which the recording of a machine begins.";
        Boot = "boot", Choice, "True if the boot was recorded, too.";
        BuildDir = "build_dir", Nothing, "The kernel's build folder, in runs of older versions.";
        Code = "code", Nothing, "Files with code that an import was given.";
        Collect = "collect", Choice, "The values that probes collect.";
        Condition = "condition", Choice, "The condition that recorded calls, misses or records meet.";
        ConditionErrors = "condition_errors", Nothing, "Times that the condition could not be computed, by kind.";
        ConditionFaults = "condition_faults", Nothing, "Times that the condition of windows or snapshots could not be evaluated.";
        ConditionForgotten = "condition_forgotten", Nothing, "Calls and intervals that it did not follow to their end.";
        Counters = "counters", Nothing, "The source of gcov's counters.";
        CoverageWindows = "coverage_windows", Nothing, "Facts of the windows in which counters were read.";
        CpuFeatures = "cpu_features", Cost, "Features that the guest's processor has or lacks.";
        Cwd = "cwd", Nothing, "The folder in which the command ran.";
        DecodeNotes = "decode_notes", Nothing, "Remarks of the decoder.";
        Disk = "disk", Nothing, "Disk images of the guest.";
        Durations = "durations", Nothing, "Counts of the calls that were measured.";
        Env = "env", Nothing, "Variables of the command's environment.";
        // The guest's tracer beside the flow runs instructions of its own.
        Events = "events", Cost, "Events that the guest's tracer recorded beside the flow.";
        Filtered = "filtered", Nothing, "Calls that the condition left out.";
        From = "from", Part, "The condition at which the windows of a recording begin.";
        Ftrace = "ftrace", Nothing, "Counts of ftrace's events.";
        Functions = "functions", Choice, "Number of functions that BPF hooked.";
        GuestImage = "guest_image", Nothing, "The disk image from which the guest was started.";
        Hook = "hook", Choice, "The way in which BPF hooks functions.";
        ImportNotes = "import_notes", Nothing, "Remarks of the importer on what it could not use.";
        Init = "init", Nothing, "The guest's first program.";
        Initrd = "initrd", Nothing, "The guest's initial file system.";
        Instrument = "instrument", Nothing, "The instrument of a recording of coverage.";
        KeepDisks = "keep_disks", Nothing, "True if the disks' contents were brought back.";
        Kernel = "kernel", Nothing, "The kernel's package or image.";
        KernelCommandLine = "kernel_command_line", Nothing, "The kernel's command line.";
        Last = "last", Choice, "Number of records kept, if only the last were asked for.";
        LeftOut = "left_out", Nothing, "Functions that the kernel let nobody hook, each with the reason.";
        // Part of the environment.
        LikeHost = "like_host", Nothing, "Values of the recording machine that the guest took over.";
        LongerThanNs = "longer_than_ns", Choice, "The duration below which BPF left calls out, ns.";
        Machine = "machine", Nothing, "The recording machine's own name.";
        MaxSize = "max_size", Nothing, "Bytes of the streams at which the recording was to end.";
        MemMib = "mem_mib", Cost, "The guest's memory, MiB.";
        Method = "method", Choice, "The method of a recording of TLB misses.";
        Module = "module", Nothing, "Modules that the guest loaded.";
        ModuleFolder = "module_folder", Nothing, "The folder of the modules of a kernel image.";
        Net = "net", Nothing, "The guest's network.";
        On = "on", Nothing, "The recording machine, as it was reached.";
        Pace = "pace", Cost, "The pace of the guest's clock.";
        Package = "package", Nothing, "Packages installed in the guest.";
        Packets = "packets", Cost, "Packets that were asked for.";
        Perf = "perf", Choice, "The command line of perf.";
        Port = "port", Nothing, "Ports forwarded to the guest.";
        Probes = "probes", Choice, "The probes.";
        Qemu = "qemu", Nothing, "QEMU's version.";
        Record = "record", Nothing, "The recorder, as its command is named.";
        RecordBytes = "record_bytes", Nothing, "Bytes of a record of a call that BPF kept.";
        RecordedBy = "recorded_by", Nothing, "The command that made an imported recording.";
        RecordedOf = "recorded_of", Choice, "The mode of an imported recording.";
        Root = "root", Nothing, "The folder that was the guest's root.";
        Settings = "settings", Nothing, "Settings of ftrace: those of [`SettingKey`].";
        Share = "share", Nothing, "Folders shared with the guest.";
        ShortSnapshots = "short_snapshots", Nothing, "Snapshots that lack the begin of what triggered them.";
        Snapshot = "snapshot", Part, "True if only the last packets before a request of the user's were kept.";
        SnapshotBytes = "snapshot_bytes", Choice, "Bytes of the packets that a snapshot keeps.";
        SnapshotHits = "snapshot_hits", Nothing, "Counts of the condition at which snapshots were taken.";
        SnapshotWhen = "snapshot_when", Part, "The condition at which snapshots were taken.";
        Snapshots = "snapshots", Nothing, "Number of snapshots.";
        Source = "source", Nothing, "The file or the command that a recording came from.";
        Stdin = "stdin", Nothing, "The command's standard input.";
        // Part of the environment.
        Storage = "storage", Nothing, "The device that the command's files were on; none: memory.";
        StopAfter = "stop_after", Choice, "Number of hits after which a recording of probes ended.";
        Timeout = "timeout", Nothing, "The time that the command had, s.";
        Unsettled = "unsettled", Nothing, "Counters that went on while they were read.";
        Until = "until", Part, "The condition at which the windows of a recording end.";
        // Part of the environment.
        Warm = "warm", Nothing, "Number of turns of the command before the recorded one.";
        Windows = "windows", Nothing, "Number of windows.";
        WithModule = "with_module", Nothing, "Modules of the user's that the guest loaded.";
        WithoutCondition = "without_condition", Nothing, "Functions at which the condition has no meaning, each with the reason.";
    }
}

keys! {
    /// A setting of ftrace in [`OptionKey::Settings`].
    SettingKey {
        BufferKib = "buffer_kib", Nothing, "Size of a CPU's ring, KiB: what had no room is counted.";
        Clock = "clock", Nothing, "The trace clock, which is the manifest's.";
        Cpus = "cpus", Choice, "CPUs to record.";
        Depth = "depth", Choice, "The deepest calls recorded.";
        Duration = "duration", Choice, "Time after which the recording stops.";
        Events = "events", Choice, "True if task switches and interrupts are recorded.";
        Functions = "functions", Choice, "Functions to trace.";
        Graph = "graph", Choice, "Functions that are traced with what they call.";
        Interrupts = "interrupts", Choice, "True if functions in interrupts are recorded.";
        Lenient = "lenient", Nothing, "True if functions that cannot be traced are ignored.";
        LongerThan = "longer_than", Choice, "The duration below which calls were left out.";
        MoreEvents = "more_events", Choice, "Further events.";
        NotFunctions = "not_functions", Choice, "Functions to leave out.";
        NotGraph = "not_graph", Choice, "Functions whose callees are left out.";
        Scope = "scope", Choice, "The tasks to record.";
        SleepTime = "sleep_time", Choice, "True if durations include the time off the CPU.";
        Symbols = "symbols", Nothing, "True if the kernel's symbols were copied.";
        TopLevel = "top_level", Choice, "True if the top-level ring was used.";
    }
}

impl OptionKey {
    /// The name of its part of what was recorded.
    #[must_use]
    pub fn part(self) -> Cow<'static, str> {
        match self {
            // ftrace's own setting has the plain name.
            Self::Events => "events beside the flow".into(),
            _ => spaced(self.name()),
        }
    }
}

impl SettingKey {
    /// The name of its part of what was recorded.
    #[must_use]
    pub fn part(self) -> Cow<'static, str> {
        spaced(self.name())
    }
}

fn spaced(name: &'static str) -> Cow<'static, str> {
    if name.contains('_') { name.replace('_', " ").into() } else { name.into() }
}

impl Manifest {
    /// Writes an option.
    pub fn set(&mut self, option: OptionKey, value: impl Into<Value>) {
        self.options.insert(option.name().to_owned(), value.into());
    }

    /// An option as the recorder wrote it; `None` if it wrote none.
    #[must_use]
    pub fn option(&self, option: OptionKey) -> Option<&Value> {
        self.options.get(option.name())
    }

    /// Writes several options.
    pub fn set_all(&mut self, options: impl IntoIterator<Item = (OptionKey, Value)>) {
        options.into_iter().for_each(|(option, value)| self.set(option, value));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::RunKind;

    #[test]
    fn each_option_has_a_name_of_its_own() {
        for (number, key) in OptionKey::ALL.iter().enumerate() {
            assert_eq!(OptionKey::named(key.name()), Some(OptionKey::ALL[number]), "{key:?}");
        }
        for (number, key) in SettingKey::ALL.iter().enumerate() {
            assert_eq!(SettingKey::named(key.name()), Some(SettingKey::ALL[number]), "{key:?}");
        }
        assert_eq!(OptionKey::named("of_later"), None);
    }

    #[test]
    fn each_option_that_chooses_a_part_is_told_at_the_tops_of_reports() {
        for &key in OptionKey::ALL {
            let is_told = |value: Value| {
                let mut manifest = Manifest::new(RunKind::Lab, 1);
                manifest.set(key, value);
                !manifest.recorded_part().is_empty()
            };
            let told = is_told(json!("x")) || is_told(json!(true));
            let is_count = matches!(key, OptionKey::Windows | OptionKey::Snapshots);
            assert!(told == (key.bearing() == Bearing::Part) || is_count, "{key:?}");
        }
    }
}
