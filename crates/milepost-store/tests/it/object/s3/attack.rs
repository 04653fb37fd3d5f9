//! Three processes on one bucket, with a bad network or a server that is killed and started again.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use milepost_store::{Options, Store};

use super::proxy::Proxy;
use super::{Prefix, bucket};
use crate::nodes::{Meeting, Outcome};

/// Two minutes, or eight.
fn how_long() -> Duration {
    match std::env::var_os("MILEPOST_LONG").is_some() {
        true => Duration::from_secs(480),
        false => Duration::from_secs(120),
    }
}

fn endpoint_port() -> u16 {
    let endpoint = std::env::var("AWS_ENDPOINT").unwrap();
    endpoint.rsplit(':').next().unwrap().trim_end_matches('/').parse().unwrap()
}

fn use_port(command: &mut Command, port: u16) {
    let endpoint = format!("http://127.0.0.1:{port}");
    command.env("AWS_ENDPOINT", &endpoint).env("AWS_ENDPOINT_URL", &endpoint);
}

fn add(total: &mut Outcome, one: &Outcome) {
    total.acknowledged += one.acknowledged;
    total.unknown += one.unknown;
    total.fenced += one.fenced;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_on_one_bucket_are_linearizable() {
    if bucket().is_none() {
        return;
    }
    let place = Prefix::new("nodes");
    let direct = Store::open(&place.url(), Options::default()).await.unwrap();
    let meeting = Meeting {
        url: &place.url(),
        direct: &direct,
        nodes: 3,
        work: Duration::from_secs(8),
        pause: Duration::from_millis(30),
        seed: 1,
        prepare: &|_| {},
    };
    let outcome = meeting.hold().await;
    println!("{outcome:?}");
    assert!(outcome.acknowledged > 50 && outcome.fenced > 3, "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_network_loses_and_doubles_nothing() {
    if bucket().is_none() {
        return;
    }
    let place = Prefix::new("network");
    let direct = Store::open(&place.url(), Options::default()).await.unwrap();
    let proxy = Proxy::start(endpoint_port(), 7, 6).await;
    let (begun, mut total, mut seed) = (Instant::now(), Outcome::default(), 100);
    while begun.elapsed() < how_long() {
        seed += 1;
        let meeting = Meeting {
            url: &place.url(),
            direct: &direct,
            nodes: 3,
            work: Duration::from_secs(12),
            pause: Duration::from_millis(60),
            seed,
            prepare: &|command| use_port(command, proxy.port),
        };
        add(&mut total, &meeting.hold().await);
    }
    println!("{total:?}, {} faults", proxy.met());
    assert!(total.acknowledged > 100 && proxy.met() > 100, "{total:?}");
}

/// A server of its own, to be killed.
struct Server {
    dir: tempfile::TempDir,
    ports: Vec<u16>,
    child: Child,
}

impl Server {
    fn start() -> Self {
        let held: Vec<_> = (0..12).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = held.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        drop(held);
        let dir = tempfile::tempdir().unwrap();
        let keys = [std::env::var("AWS_ACCESS_KEY_ID").unwrap(), std::env::var("AWS_SECRET_ACCESS_KEY").unwrap()];
        let identity = serde_json::json!({"identities": [{"name": "test",
            "credentials": [{"accessKey": keys[0], "secretKey": keys[1]}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]});
        std::fs::write(dir.path().join("s3.json"), identity.to_string()).unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        let child = Self::spawn(dir.path(), &ports);
        Self { dir, ports, child }
    }

    fn spawn(dir: &std::path::Path, ports: &[u16]) -> Child {
        let names = [
            "s3.port",
            "s3.port.grpc",
            "s3.port.iceberg",
            "s3.port.lance",
            "master.port",
            "master.port.grpc",
            "volume.port",
            "volume.port.grpc",
            "filer.port",
            "filer.port.grpc",
            "admin.port",
            "admin.port.grpc",
        ];
        let log = std::fs::File::create(dir.join("log")).unwrap();
        Command::new(std::env::var("MILEPOST_TEST_WEED").expect("scripts/with-s3 names the server's program"))
            .arg("mini")
            .arg(format!("-dir={}", dir.join("data").display()))
            .arg(format!("-s3.config={}", dir.join("s3.json").display()))
            .args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-webdav=false"])
            .args(["-admin.ui=false", "-bucket=milepost"])
            .args(names.iter().zip(ports).map(|(name, port)| format!("-{name}={port}")))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// With SIGKILL, and started again on what it left.
    async fn kill_and_start(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.child = Self::spawn(self.dir.path(), &self.ports);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The judge is a process of its own here: its server is not the one that this process's environment names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_and_doubles_nothing() {
    const URL: &str = "MILEPOST_TEST_JUDGE";
    if bucket().is_none() {
        return;
    }
    if let Ok(url) = std::env::var(URL) {
        return judge_killed(&url).await;
    }
    let mut server = Server::start();
    let mut judge = Command::new(std::env::current_exe().unwrap());
    judge.args(["--exact", "object::s3::attack::a_server_that_is_killed_loses_and_doubles_nothing", "--nocapture"]);
    judge.env(URL, "s3://milepost/killed");
    use_port(&mut judge, server.ports[0]);
    let mut judge = judge.spawn().unwrap();
    let mut kills = 0;
    let status = loop {
        for _ in 0..90 {
            if judge.try_wait().unwrap().is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        match judge.try_wait().unwrap() {
            Some(status) => break status,
            None => server.kill_and_start().await,
        }
        kills += 1;
    };
    println!("killed {kills} times");
    assert!(status.success(), "{status}");
    assert!(kills > 5);
}

async fn judge_killed(url: &str) {
    // The server is killed under the judge too: whatever it needs is tried until it is there.
    let direct = loop {
        match Store::open(url, Options::default()).await {
            Ok(store) => break store,
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    };
    let (begun, mut total, mut seed) = (Instant::now(), Outcome::default(), 500);
    while begun.elapsed() < how_long() {
        seed += 1;
        let meeting = Meeting {
            url,
            direct: &direct,
            nodes: 3,
            work: Duration::from_secs(20),
            pause: Duration::from_millis(60),
            seed,
            prepare: &|_| {},
        };
        add(&mut total, &meeting.hold().await);
    }
    println!("{total:?}");
    assert!(total.acknowledged > 100, "{total:?}");
}
