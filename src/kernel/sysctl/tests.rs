use super::*;

const SETTINGS: ConntrackSettings = ConntrackSettings {
    max_per_core: 32_768,
    min: 131_072,
    tcp_established: Some(Duration::from_secs(86_400)),
    tcp_close_wait: Some(Duration::from_millis(3_600_999)),
    udp: None,
    udp_stream: Some(Duration::ZERO),
    tcp_be_liberal: false,
};

/// A directory with `cpus` CPUs, and the values of a kernel.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new(cpus: usize, values: &[(&str, &str)]) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        for cpu in 0..cpus {
            machine.dir(&format!("sys/devices/system/cpu/cpu{cpu}/topology"));
        }
        for other in ["cpufreq", "cpuidle", "cpu9999"] {
            machine.dir(&format!("sys/devices/system/cpu/{other}"));
        }
        machine.dir("proc/net/netfilter");
        machine.dir("sys/module/nf_conntrack/parameters");
        values.iter().for_each(|(name, value)| fs::write(machine.path(name), format!("{value}\n")).unwrap());
        machine
    }

    fn dir(&self, path: &str) {
        fs::create_dir_all(self.0.path().join(path)).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        match name {
            "hashsize" => self.0.path().join("sys/module/nf_conntrack/parameters/hashsize"),
            name => self.0.path().join("proc/net/netfilter").join(name),
        }
    }

    fn apply(&self, settings: &ConntrackSettings) -> Result<Vec<(PathBuf, u64)>, SysctlError> {
        apply_below(settings, &self.0.path().join("proc"), &self.0.path().join("sys"))
    }
}

fn limit_of(max_per_core: u32, min: u32, cpus: u64) -> Option<u64> {
    limit(&ConntrackSettings { max_per_core, min, ..SETTINGS }, cpus)
}

// N1
#[test]
fn the_limit_follows_the_cpus_between_minimum_and_cap() {
    assert_eq!(limit_of(32_768, 131_072, 2), Some(131_072));
    assert_eq!(limit_of(32_768, 131_072, 8), Some(262_144));
    assert_eq!(limit_of(32_768, 131_072, 64), Some(1_048_576));
    assert_eq!(limit_of(32_768, 2_000_000, 64), Some(1_048_576), "the cap wins over the minimum");
    assert_eq!(limit_of(32_768, 2_000_000, 2), Some(2_000_000), "but is only looked at first");
    assert_eq!(limit_of(0, 131_072, 8), None);
    assert_eq!(limit_of(u32::MAX, 0, 8), Some(1_048_576));
}

// N1
#[test]
fn cpus_are_those_online_in_the_topology() {
    let machine = Machine::new(3, &[]);
    let sys = machine.0.path().join("sys");
    assert_eq!(cpus(&sys), 3);
    fs::write(sys.join("devices/system/cpu/cpu2/online"), "0\n").unwrap();
    fs::write(sys.join("devices/system/cpu/cpu1/online"), "1\n").unwrap();
    assert_eq!(cpus(&sys), 2);
    assert!(cpus(Path::new("/nowhere")) > 0);
}

// N2 N3
#[test]
fn what_differs_is_written() {
    let machine = Machine::new(
        8,
        &[
            ("nf_conntrack_max", "300000"),
            ("hashsize", "65000"),
            ("nf_conntrack_tcp_timeout_established", "432000"),
            ("nf_conntrack_tcp_timeout_close_wait", "60"),
        ],
    );
    let written = machine.apply(&SETTINGS).unwrap();
    let expected = [
        ("nf_conntrack_max", 262_144),
        ("hashsize", 65_536),
        ("nf_conntrack_tcp_timeout_established", 86_400),
        ("nf_conntrack_tcp_timeout_close_wait", 3_600),
    ];
    assert_eq!(written, expected.map(|(name, value)| (machine.path(name), value)));
    for (name, value) in expected {
        assert_eq!(fs::read_to_string(machine.path(name)).unwrap(), value.to_string());
    }
    assert_eq!(machine.apply(&SETTINGS).unwrap(), [], "a second time nothing differs");
}

// N2
#[test]
fn a_larger_hash_table_stays() {
    let machine = Machine::new(8, &[("nf_conntrack_max", "262144"), ("hashsize", "65537")]);
    let limit_only = ConntrackSettings { tcp_established: None, tcp_close_wait: None, ..SETTINGS };
    assert_eq!(machine.apply(&limit_only).unwrap(), []);
}

// N3
#[test]
fn being_liberal_is_switched_on_and_never_off() {
    let machine = Machine::new(1, &[("nf_conntrack_tcp_be_liberal", "1")]);
    assert_eq!(machine.apply(&ConntrackSettings::default()).unwrap(), []);
    let liberal = ConntrackSettings { tcp_be_liberal: true, ..ConntrackSettings::default() };
    assert_eq!(machine.apply(&liberal).unwrap(), []);
    fs::write(machine.path("nf_conntrack_tcp_be_liberal"), "0\n").unwrap();
    assert_eq!(machine.apply(&liberal).unwrap().len(), 1);
}

// N4
#[test]
fn a_value_that_is_right_needs_no_permission_and_another_says_what_to_do() {
    // These two can be written by nobody, root included.
    let machine = Machine::new(1, &[]);
    let path = machine.path("nf_conntrack_udp_timeout");
    std::os::unix::fs::symlink("/proc/sys/kernel/ostype", &path).unwrap();
    let udp = ConntrackSettings { udp: Some(Duration::from_secs(30)), ..ConntrackSettings::default() };
    let error = machine.apply(&udp).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot write 30 to {} (it is Linux)", path.display())), "{error}");
    assert!(error.contains("--init-only"), "{error}");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/proc/sys/kernel/ngroups_max", &path).unwrap();
    let right: u64 = fs::read_to_string(&path).unwrap().trim().parse().unwrap();
    let udp = ConntrackSettings { udp: Some(Duration::from_secs(right)), ..udp };
    assert_eq!(machine.apply(&udp).unwrap(), []);
}

// N1
#[test]
fn a_kernel_without_connection_tracking_is_named() {
    let error = Machine::new(1, &[]).apply(&SETTINGS).unwrap_err().to_string();
    assert!(error.contains("nf_conntrack_max does not exist") && error.contains("load kernel module"), "{error}");
}
