//! A PostgreSQL server of a test's own, to be stopped in the middle of work.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A server in a scratch directory. It is stopped and removed when this is dropped.
pub struct Cluster {
    bin: PathBuf,
    dir: PathBuf,
    port: u16,
}

/// Where the server's programs are; none when it is not installed.
fn programs() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten().map(|d| d.path()).collect();
    found.sort();
    found.into_iter().rev().map(|version| version.join("bin")).find(|bin| bin.join("initdb").is_file())
}

/// A command as a user that the server accepts: it refuses to run as root.
fn as_user(program: &Path) -> Command {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout == b"0\n");
    if !is_root {
        return Command::new(program);
    }
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--"]).arg(program);
    command
}

fn run(command: &mut Command) -> Output {
    let output = command.current_dir("/").output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

impl Cluster {
    /// Starts a server; none when it is not installed.
    pub fn start() -> Option<Self> {
        let cluster = Self::make()?;
        cluster.control(&["start"]);
        Some(cluster)
    }

    /// Starts a server that takes encrypted connections only, with a certificate for `localhost` that it signed itself;
    /// none when something for that is not installed.
    pub fn start_encrypted() -> Option<Self> {
        Command::new("openssl").arg("version").output().ok()?;
        let cluster = Self::make()?;
        let data = cluster.dir.join("data");
        let request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"];
        let extensions = ["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"];
        let mut openssl = as_user(Path::new("openssl"));
        openssl.args(request).args(extensions);
        run(openssl.arg("-keyout").arg(data.join("server.key")).arg("-out").arg(cluster.certificate()));
        let append = |name: &str, text: &str| {
            let shell = format!("echo '{text}' >> {}", data.join(name).display());
            run(as_user(Path::new("sh")).args(["-c", &shell]));
        };
        append("postgresql.conf", "ssl = on");
        run(as_user(Path::new("rm")).arg(data.join("pg_hba.conf")));
        append("pg_hba.conf", "hostssl all all all trust");
        append("pg_hba.conf", "local all all trust");
        cluster.control(&["start"]);
        Some(cluster)
    }

    /// The certificate of a server that was started encrypted.
    pub fn certificate(&self) -> PathBuf {
        self.dir.join("data/server.crt")
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    fn make() -> Option<Self> {
        let bin = programs()?;
        let made = run(as_user(Path::new("mktemp")).args(["-d", "/tmp/milepost-pg.XXXXXX"]));
        let dir = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
        let data = dir.join("data");
        run(as_user(&bin.join("initdb"))
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-D"])
            .arg(data));
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Some(Self { bin, dir, port })
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    fn control(&self, what: &[&str]) {
        let options = format!("-p {} -k {} -c listen_addresses=127.0.0.1", self.port, self.dir.display());
        let mut command = as_user(&self.bin.join("pg_ctl"));
        // Its output goes to a file: the server would hold a pipe open.
        command.args(["-w", "-o", &options, "-l"]).arg(self.dir.join("log")).arg("-D").arg(self.dir.join("data"));
        let status = command.args(what).current_dir("/").stdout(std::process::Stdio::null()).status().unwrap();
        assert!(status.success(), "pg_ctl {what:?}");
    }

    /// Ends the server as a power cut would, and starts it again.
    pub fn crash(&self) {
        self.control(&["restart", "-m", "immediate"]);
    }

    /// Ends the server as a power cut would.
    pub fn stop(&self) {
        self.control(&["stop", "-m", "immediate"]);
    }

    pub fn start_again(&self) {
        self.control(&["start"]);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut stop = as_user(&self.bin.join("pg_ctl"));
        let stop = stop.args(["-m", "immediate", "-D"]).arg(self.dir.join("data")).arg("stop");
        drop(stop.current_dir("/").stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).status());
        drop(as_user(Path::new("rm")).arg("-rf").arg(&self.dir).status());
    }
}

/// A pooler in transaction mode before a server: hardly two statements of a client get the same connection.
pub struct Pooler {
    dir: PathBuf,
    port: u16,
}

impl Pooler {
    /// Starts one before the server of a URL; none when it is not installed.
    pub fn start(server: &str) -> Option<Self> {
        let program = Path::new("/usr/sbin/pgbouncer");
        if !program.is_file() {
            return None;
        }
        let behind: tokio_postgres::Config = server.split('?').next()?.parse().ok()?;
        let behind = behind.get_ports().first()?;
        let made = run(as_user(Path::new("mktemp")).args(["-d", "/tmp/milepost-pool.XXXXXX"]));
        let dir = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let place = dir.display();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={behind} user=postgres\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={port}\n\
             unix_socket_dir=\nauth_type=any\npool_mode=transaction\ndefault_pool_size=3\nserver_reset_query_always=1\n\
             server_reset_query=DISCARD ALL\nlogfile={place}/log\npidfile={place}/pid\n"
        );
        let file = dir.join("pgbouncer.ini");
        std::fs::write(&file, settings).unwrap();
        run(as_user(program).arg("-d").arg(&file).stdout(std::process::Stdio::null()));
        Some(Self { dir, port })
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        if let Ok(pid) = std::fs::read_to_string(self.dir.join("pid")) {
            drop(as_user(Path::new("kill")).args(["-TERM", pid.trim()]).status());
        }
        drop(as_user(Path::new("rm")).arg("-rf").arg(&self.dir).status());
    }
}
