//! The proxy under test: started in a node's namespace on a manifest directory or an API server, watched through its metrics,
//! stopped by signal.
//!
//! The binary is `$KUBE_PROXY_BINARY`, else the one Cargo built beside the tests. It runs as
//! `ip netns exec NODE BINARY --config FILE [--manifests DIR]` and is ready once every series of
//! `kubeproxy_sync_proxy_rules_last_timestamp_seconds` is above zero. Its log is printed when the test fails.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};
use std::{env, thread};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::layout::Layout;
use super::manifests::Manifests;
use super::netns::Namespace;
use super::plan::{CLUSTER_CIDR, NODE};

const METRICS: &str = "127.0.0.1:10249";
const LAST_SYNC: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
const PATIENCE_SECONDS: u64 = 20;
const PATIENCE_VARIABLE: &str = "TEST_PATIENCE_SECONDS";
const POLL: Duration = Duration::from_millis(20);
/// The time without a sync after which the proxy is quiet. It is longer than `minSyncPeriod`, so all requested syncs are done by then.
const QUIET: Duration = Duration::from_millis(150);

/// The longest time for which a proxy whose threads always have work does not count as quiet.
const LONGEST_WORK: Duration = Duration::from_secs(5);

/// Returns whether `$TEST_PATIENCE_SECONDS` is set, which says that the machine is slow.
pub(crate) fn is_slow() -> bool {
    env::var_os(PATIENCE_VARIABLE).is_some()
}

/// Returns the longest time that any wait may take; `$TEST_PATIENCE_SECONDS` sets it where machines are slow or clusters large.
fn patience() -> Duration {
    let seconds = env::var(PATIENCE_VARIABLE).ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(PATIENCE_SECONDS))
}

/// The proxy's binary.
pub(crate) fn binary() -> PathBuf {
    env::var_os("KUBE_PROXY_BINARY").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_kube-proxy")), PathBuf::from)
}

/// A KubeProxyConfiguration for tests, in layout `maps`; change its fields before the start.
pub(crate) fn config() -> Value {
    config_in(Layout::Maps)
}

/// Like [`config`], in this layout.
pub(crate) fn config_in(layout: Layout) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": { "kubeconfig": "" },
        "hostnameOverride": NODE,
        "clusterCIDR": CLUSTER_CIDR,
        "detectLocalMode": "ClusterCIDR",
        "nodePortAddresses": [],
        "nftables": {
            "masqueradeAll": false, "syncPeriod": "10s", "minSyncPeriod": "10ms", "rulesetLayout": layout.field(),
            "endpointChains": layout.has_endpoint_chains(),
        },
        "conntrack": { "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
        "oomScoreAdj": 0,
        "metricsBindAddress": METRICS,
        "healthzBindAddress": "127.0.0.1:10256",
    })
}

/// What the threads of a process that run now have done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Activity {
    /// How often they began to wait.
    pub(crate) wakeups: u64,
    /// Their processor time, in nanoseconds and not in ticks.
    pub(crate) processor_time: Duration,
}

impl Activity {
    /// Returns what was done since `before`; nothing if threads have ended that had done more.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            wakeups: self.wakeups.saturating_sub(before.wakeups),
            processor_time: self.processor_time.saturating_sub(before.processor_time),
        }
    }
}

/// A proxy process and its files; killed when dropped.
pub(crate) struct Proxy<'world> {
    node: &'world Namespace,
    directory: TempDir,
    /// `None` if the objects come from an API server.
    manifests: Option<Manifests>,
    wrapper: Vec<String>,
    binary: PathBuf,
    arguments: Vec<String>,
    /// Where standard error goes in place of the log file.
    stderr: Option<OwnedFd>,
    child: Option<Child>,
}

impl<'world> Proxy<'world> {
    /// Starts the proxy in `node` with these objects, and waits until it has written its rules.
    pub(crate) fn start(node: &'world Namespace, config: &Value, objects: &[Value]) -> Self {
        Self::start_under(&[], node, config, objects)
    }

    /// Like [`Proxy::start`], with further arguments.
    pub(crate) fn start_with(arguments: &[&str], node: &'world Namespace, config: &Value, objects: &[Value]) -> Self {
        let mut proxy = Self::prepare(node, config, objects);
        proxy.set_arguments(arguments);
        proxy.launch();
        proxy
    }

    /// Like [`Proxy::start`], run by another program such as strace: `wrapper BINARY ...`.
    pub(crate) fn start_under(wrapper: &[&str], node: &'world Namespace, config: &Value, objects: &[Value]) -> Self {
        let mut proxy = Self::prepare(node, config, objects);
        proxy.set_wrapper(wrapper);
        proxy.launch();
        proxy
    }

    /// A proxy with its files, not started yet.
    pub(crate) fn prepare(node: &'world Namespace, config: &Value, objects: &[Value]) -> Self {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let manifests = Manifests::new(directory.path().join("manifests"));
        objects.iter().for_each(|object| manifests.apply(object));
        Self::new(node, directory, Some(manifests), config)
    }

    /// A proxy for `node` that takes its objects from an API server; [`Proxy::launch`] or [`Proxy::spawn`] starts it.
    pub(crate) fn with_api(node: &'world Namespace, config: &Value, kubeconfig: &Path) -> Self {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let mut config = config.clone();
        config["clientConnection"]["kubeconfig"] = json!(kubeconfig);
        Self::new(node, directory, None, &config)
    }

    fn new(node: &'world Namespace, directory: TempDir, manifests: Option<Manifests>, config: &Value) -> Self {
        let (wrapper, arguments) = (Vec::new(), Vec::new());
        let proxy =
            Self { node, directory, manifests, wrapper, binary: binary(), arguments, stderr: None, child: None };
        proxy.configure(config);
        proxy
    }

    /// Starts the process, again after [`Proxy::stop`], and waits until it has written its rules.
    pub(crate) fn launch(&mut self) {
        self.spawn();
        self.wait_until_synced();
    }

    /// Waits until the proxy has written its first rules.
    pub(crate) fn wait_until_synced(&mut self) {
        self.wait_until("write its first rules", |times| !times.is_empty() && times.iter().all(|time| *time > 0.0));
    }

    /// Starts the process and waits for nothing.
    pub(crate) fn spawn(&mut self) {
        assert!(self.child.is_none(), "the proxy runs already");
        let log = File::options().create(true).append(true).open(self.log_path()).expect("the log can be opened");
        let mut command = match self.wrapper.split_first() {
            Some((program, arguments)) => {
                let mut command = self.node.command(program);
                command.args(arguments).arg(&self.binary);
                command
            }
            None => self.node.command(&self.binary),
        };
        command.arg("--config").arg(self.config_path());
        if let Some(manifests) = &self.manifests {
            command.arg("--manifests").arg(manifests.path());
        }
        command.args(&self.arguments);
        command.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        if let Some(stderr) = &self.stderr {
            command.stderr(stderr.try_clone().expect("a pipe can be shared"));
        }
        self.child = Some(command.spawn().unwrap_or_else(|error| panic!("cannot start the proxy: {error}")));
    }

    /// Writes another configuration, for the next start.
    pub(crate) fn configure(&self, config: &Value) {
        fs::write(self.config_path(), config.to_string()).expect("the configuration can be written");
    }

    /// Adds or replaces objects and waits until the proxy has synced and is quiet.
    pub(crate) fn apply(&mut self, objects: &[Value]) {
        self.change(|manifests| objects.iter().for_each(|object| manifests.apply(object)));
    }

    /// Removes objects and waits until the proxy has synced and is quiet.
    pub(crate) fn delete(&mut self, objects: &[Value]) {
        self.change(|manifests| objects.iter().for_each(|object| manifests.delete(object)));
    }

    /// The manifest directory, for changes that need not lead to a sync.
    pub(crate) fn manifests(&self) -> &Manifests {
        self.manifests.as_ref().expect("a proxy with manifests")
    }

    /// The file given as `--config`.
    pub(crate) fn config_path(&self) -> PathBuf {
        self.directory.path().join("config.yaml")
    }

    /// A directory of this proxy for a test's own files.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Waits until no sync has happened for a while, in which no thread of the proxy had something to do.
    pub(crate) fn wait_until_quiet(&mut self) {
        let start = Instant::now();
        let (mut before, mut since) = (self.sync_times(), start);
        while since.elapsed() < QUIET {
            assert!(start.elapsed() < patience(), "the proxy does not come to rest");
            thread::sleep(POLL);
            let is_busy = self.has_work() && start.elapsed() < LONGEST_WORK;
            let now = self.sync_times();
            if now != before || is_busy {
                (before, since) = (now, Instant::now());
            }
        }
    }

    /// Returns whether a thread of the proxy runs, or waits for a processor: on a busy machine that can last longer than [`QUIET`].
    fn has_work(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let mut stats =
            threads.filter_map(|thread| fs::read_to_string(format!("{}/stat", thread.path().display())).ok());
        stats.any(|stat| from_state(&stat).starts_with(['R', 'D']))
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        self.end(Signal::TERM)
    }

    /// Sends SIGKILL and waits for the end.
    pub(crate) fn kill(&mut self) -> ExitStatus {
        self.end(Signal::KILL)
    }

    /// Sets further arguments for the next start.
    pub(crate) fn set_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
    }

    /// Sets a program that runs the proxy at the next start: `wrapper BINARY ...`.
    pub(crate) fn set_wrapper(&mut self, wrapper: &[&str]) {
        self.wrapper = wrapper.iter().map(ToString::to_string).collect();
    }

    /// Sends the log of the next start to `stderr`, such as a pipe; [`Proxy::log`] then lacks that log.
    pub(crate) fn set_stderr(&mut self, stderr: OwnedFd) {
        self.stderr = Some(stderr);
    }

    /// Sets the binary for the next start.
    pub(crate) fn set_binary(&mut self, binary: &Path) {
        binary.clone_into(&mut self.binary);
    }

    /// The whole answer to a GET inside the node's namespace.
    pub(crate) fn get(&self, address: &str, path: &str) -> String {
        let answer = self.node.enter(|| http_get(address, path));
        answer.unwrap_or_else(|| panic!("no server answers {path} at {address}"))
    }

    /// Like [`Proxy::get`], for a server that may not be there.
    pub(crate) fn try_get(&self, address: &str, path: &str) -> Option<String> {
        self.node.enter(|| http_get(address, path))
    }

    /// The process id; `ip netns exec` becomes the program that it runs.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the proxy runs").id()
    }

    /// The most memory that the process ever had, in MiB.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("a process has a status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
    }

    /// Returns the processor time of the process, in user and system mode.
    pub(crate) fn processor_time(&self) -> Duration {
        /// The unit of processor times in `/proc` (`USER_HZ`): a hundredth of a second on every architecture that Kubernetes supports.
        const TICK: Duration = Duration::from_millis(10);
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("a process has a status");
        // The two times are fields 14 and 15.
        let times = from_state(&stat).split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u32>().expect("a number"));
        TICK * times.sum()
    }

    /// Returns how often the threads of the process have begun to wait, and so woken up later, and their processor time.
    pub(crate) fn activity(&self) -> Activity {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let of_thread = |path: PathBuf| {
            let status = fs::read_to_string(path.join("status")).ok()?;
            let waits = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            let schedule = fs::read_to_string(path.join("schedstat")).ok()?;
            let time = Duration::from_nanos(schedule.split(' ').next()?.parse().ok()?);
            Some(Activity { wakeups: waits.trim().parse().ok()?, processor_time: time })
        };
        threads.filter_map(|thread| of_thread(thread.path())).fold(Activity::default(), |sum, one| Activity {
            wakeups: sum.wakeups + one.wakeups,
            processor_time: sum.processor_time + one.processor_time,
        })
    }

    /// Whether the process has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().expect("a child can be asked").is_none())
    }

    /// Waits until the process ends by itself.
    pub(crate) fn wait_for_end(&mut self) -> ExitStatus {
        let child = self.child.take().expect("the proxy runs");
        self.wait_for(child, "end by itself")
    }

    /// What the proxy has logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_path()).expect("the log can be read")
    }

    /// When each family was last synced, as `/metrics` shows; empty without an answer.
    pub(crate) fn sync_times(&self) -> Vec<f64> {
        self.series(LAST_SYNC)
    }

    /// Returns the values of a metric's series, or the value of one series if `name` ends in its labels, as `/metrics` shows them; an empty
    /// list without an answer or such a series.
    pub(crate) fn series(&self, name: &str) -> Vec<f64> {
        let text = self.node.enter(|| http_get(METRICS, "/metrics")).unwrap_or_default();
        let is_it = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let series = text.lines().filter(is_it);
        series.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
    }

    fn change(&mut self, change: impl FnOnce(&Manifests)) {
        let latest = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
        let before = latest(&self.sync_times());
        change(self.manifests());
        self.wait_until("sync a change", |times| latest(times) > before);
        self.wait_until_quiet();
    }

    fn wait_until(&mut self, what: &str, reached: impl Fn(&[f64]) -> bool) {
        let end = Instant::now() + patience();
        while !reached(&self.sync_times()) {
            let status = self.child.as_mut().and_then(|child| child.try_wait().expect("a child can be asked"));
            assert!(status.is_none(), "the proxy ended ({status:?}) before it could {what}");
            assert!(Instant::now() < end, "the proxy did not {what} within {:?}", patience());
            thread::sleep(POLL);
        }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().try_into().expect("a process id fits")).expect("a process id is not 0");
        kill_process(pid, signal).expect("a child can be signalled");
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        let child = self.child.take().expect("the proxy runs");
        self.wait_for(child, &format!("end after {signal:?}"))
    }

    fn wait_for(&mut self, mut child: Child, what: &str) -> ExitStatus {
        let end = Instant::now() + patience();
        loop {
            if let Some(status) = child.try_wait().expect("a child can be asked") {
                return status;
            }
            if Instant::now() > end {
                self.child = Some(child);
                panic!("the proxy did not {what} within {:?}", patience());
            }
            thread::sleep(POLL);
        }
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("proxy.log")
    }
}

impl Drop for Proxy<'_> {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The process may have ended on its own; then there is nothing to kill.
            let _ended = child.kill().and_then(|()| child.wait());
        }
        if thread::panicking() {
            let log = fs::read_to_string(self.log_path()).unwrap_or_default();
            eprintln!("--- log of the proxy ---\n{log}--- end of the log ---");
        }
    }
}

/// The fields of a file `stat` in `/proc` from field 3, the state, on; they follow the name in parentheses.
fn from_state(stat: &str) -> &str {
    stat.rsplit_once(") ").expect("the name is in parentheses").1
}

fn http_get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}
