//! Where the server is and who asks: from a URL, the usual environment variables and the password file. None of it
//! is ever part of a message but the host, the port and the database.

use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::tls::Trust;
use crate::error::{Error, Result};

/// The schema that holds the tables unless the URL names another.
const SCHEMA: &str = "milepost";
/// PostgreSQL's own limit of a name.
const NAME_MAX: usize = 63;

/// How to reach the server.
pub(super) struct Target {
    pub config: tokio_postgres::Config,
    pub trust: Trust,
    pub schema: String,
    /// The server in words: host, port and database, nothing secret.
    pub words: String,
}

/// Reads one environment variable; an empty one counts as none.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Target {
    /// What a URL says, and where it says nothing, what the environment says.
    pub fn from_url(url: &str) -> Result<Self> {
        Self::read(url, &variable)
    }

    fn read(url: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let (plain, own) = split_own(url)?;
        let given = |name: &str| own.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        // The parser's message can repeat what was given to it: only its kind is said.
        let mut config: tokio_postgres::Config =
            plain.parse().map_err(|_| refused("it is not a PostgreSQL URL: use postgres://USER@HOST:PORT/DATABASE"))?;
        fill(&mut config, variable)?;
        let trust = trust(&mut config, given("sslmode"), given("sslrootcert"), variable)?;
        if config.get_hosts().len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_password().is_none()
            && let Some(password) = from_password_file(&config, variable)
        {
            config.password(password);
        }
        let schema = given("schema").unwrap_or_else(|| SCHEMA.to_owned());
        check_schema(&schema)?;
        let words = words(&config, &schema);
        Ok(Self { config, trust, schema, words })
    }
}

fn refused(why: impl Into<String>) -> Error {
    Error::invalid("the PostgreSQL URL", why)
}

/// Takes the parameters that are ours out of a URL: the driver would refuse them.
fn split_own(url: &str) -> Result<(String, Vec<(String, String)>)> {
    let Some((front, query)) = url.split_once('?') else { return Ok((url.to_owned(), Vec::new())) };
    let (mut own, mut rest) = (Vec::new(), Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some((key @ ("schema" | "sslmode" | "sslrootcert"), value)) => {
                own.push((key.to_owned(), decode(value).ok_or_else(|| refused(format!("{key} is not UTF-8")))?));
            }
            _ => rest.push(pair),
        }
    }
    let plain = if rest.is_empty() { front.to_owned() } else { format!("{front}?{}", rest.join("&")) };
    Ok((plain, own))
}

/// Undoes a URL's percent signs.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = tail.get(2..)?;
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// Fills what the URL left out from the environment, as libpq would.
fn fill(config: &mut tokio_postgres::Config, variable: &dyn Fn(&str) -> Option<String>) -> Result<()> {
    let number = |name: &str| -> Result<Option<u64>> {
        let parse = |text: String| text.trim().parse().map_err(|_| Error::invalid(name, "it is not a number"));
        variable(name).map(parse).transpose()
    };
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        let hosts = variable("PGHOST").unwrap_or_else(default_host);
        for host in hosts.split(',') {
            config.host(host);
        }
        if config.get_ports().is_empty()
            && let Some(port) = number("PGPORT")?
        {
            config.port(u16::try_from(port).map_err(|_| Error::invalid("PGPORT", "there is no such port"))?);
        }
    }
    if config.get_user().is_none() {
        let user = variable("PGUSER").or_else(|| variable("USER")).or_else(|| variable("LOGNAME"));
        config.user(user.ok_or_else(|| refused("it names no user, nor does PGUSER: add USER@ before the host"))?);
    }
    if config.get_dbname().is_none() {
        let name = variable("PGDATABASE").or_else(|| config.get_user().map(str::to_owned));
        if let Some(name) = name {
            config.dbname(name);
        }
    }
    if config.get_password().is_none()
        && let Some(password) = variable("PGPASSWORD")
    {
        config.password(password);
    }
    if config.get_application_name().is_none() {
        config.application_name(variable("PGAPPNAME").unwrap_or_else(|| "milepost".to_owned()));
    }
    if config.get_connect_timeout().is_none()
        && let Some(seconds) = number("PGCONNECT_TIMEOUT")?.filter(|seconds| *seconds > 0)
    {
        config.connect_timeout(Duration::from_secs(seconds));
    }
    // A peer that vanished without a word is noticed in a minute or so, not in two hours.
    config.keepalives_idle(Duration::from_secs(30));
    Ok(())
}

/// Where a server on the same machine listens.
fn default_host() -> String {
    let socket = "/var/run/postgresql";
    if std::path::Path::new(socket).is_dir() { socket } else { "localhost" }.to_owned()
}

/// Whether to encrypt the connection, and whom to trust.
fn trust(
    config: &mut tokio_postgres::Config,
    mode: Option<String>,
    root: Option<String>,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Trust> {
    let mode = mode.or_else(|| variable("PGSSLMODE")).unwrap_or_else(|| "prefer".to_owned());
    let root = root.or_else(|| variable("PGSSLROOTCERT")).filter(|root| root != "system").map(PathBuf::from);
    let (ssl, trust) = match mode.as_str() {
        "disable" => (SslMode::Disable, Trust::Anyone),
        "allow" | "prefer" => (SslMode::Prefer, Trust::Anyone),
        // As libpq has it: a root that is there is asked, without one the connection is only encrypted.
        "require" => (SslMode::Require, root.map_or(Trust::Anyone, |root| Trust::Root(Some(root)))),
        "verify-ca" | "verify-full" => (SslMode::Require, Trust::Root(root)),
        other => {
            let all = "disable, prefer, require or verify-full";
            return Err(Error::invalid(format!("sslmode {other}"), format!("there is none such: use {all}")));
        }
    };
    config.ssl_mode(ssl);
    Ok(trust)
}

/// A name that needs no quotes: it stands in every statement.
fn check_schema(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if begins && name.len() <= NAME_MAX && name.chars().all(is_plain) && !name.starts_with("pg_") {
        return Ok(());
    }
    Err(Error::invalid(format!("schema {name:?}"), "use lower-case letters, digits and _, up to 63 of them"))
}

fn host_words(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    }
}

fn words(config: &tokio_postgres::Config, schema: &str) -> String {
    let hosts: Vec<String> = config.get_hosts().iter().map(host_words).collect();
    let ports: Vec<String> = config.get_ports().iter().map(u16::to_string).collect();
    let (hosts, database) = (hosts.join(","), config.get_dbname().unwrap_or_default());
    format!("PostgreSQL at {hosts}:{} (database {database}, schema {schema})", ports.join(","))
}

/// The password that `~/.pgpass` (or PGPASSFILE) has for this server.
fn from_password_file(config: &tokio_postgres::Config, variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let path = match variable("PGPASSFILE") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(variable("HOME")?).join(".pgpass"),
    };
    // libpq does not use a file that others may read, either.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&path).ok()?.permissions().mode();
        if mode & 0o077 != 0 {
            return None;
        }
    }
    let text = std::fs::read_to_string(path).ok()?;
    let host = match config.get_hosts().first()? {
        Host::Tcp(name) => name.clone(),
        Host::Unix(_) => "localhost".to_owned(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let wanted = [host.as_str(), &port, config.get_dbname()?, config.get_user()?];
    text.lines().find_map(|line| password_in(line, wanted))
}

/// The password of one line `host:port:database:user:password`, if it is for this server.
fn password_in(line: &str, wanted: [&str; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields = vec![String::new()];
    let mut chars = line.trim_end_matches('\r').chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => fields.last_mut()?.push(chars.next()?),
            ':' if fields.len() < 5 => fields.push(String::new()),
            other => fields.last_mut()?.push(other),
        }
    }
    let [own @ .., password] = fields.as_slice() else { return None };
    let fits = own.len() == 4 && own.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
    fits.then(|| password.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn a_url_says_everything() {
        let url = "postgresql://me:se%40cret@db.example:6000/work?schema=agents&sslmode=require&connect_timeout=3";
        let target = Target::read(url, &none).unwrap();
        assert_eq!(target.config.get_user(), Some("me"));
        assert_eq!(target.config.get_password(), Some(b"se@cret".as_slice()));
        assert_eq!(target.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(target.config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(target.words, "PostgreSQL at db.example:6000 (database work, schema agents)");
    }

    #[test]
    fn the_environment_fills_what_the_url_leaves_out() {
        let environment = |name: &str| {
            let value = match name {
                "PGHOST" => "one,two",
                "PGPORT" => "5433",
                "PGUSER" => "someone",
                "PGPASSWORD" => "secret",
                "PGSSLMODE" => "disable",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let target = Target::read("postgres://", &environment).unwrap();
        assert_eq!(target.config.get_hosts().len(), 2);
        assert_eq!(target.config.get_dbname(), Some("someone"));
        assert_eq!(target.config.get_password(), Some(b"secret".as_slice()));
        assert_eq!(target.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        assert!(!target.words.contains("secret"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_without_repeating_it() {
        for url in [
            "postgres://me:hunter2@h/d?schema=a.b",
            "postgres://me:hunter2@h/d?schema=",
            "postgres://me:hunter2@h/d?sslmode=perhaps",
            "postgres://me:hunter2@h:port/d",
            "postgres://me:hunter2@h/d?colour=red",
        ] {
            let error = Target::read(url, &none).err().unwrap();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn the_password_file_is_read_as_libpq_reads_it() {
        let wanted = ["db", "5432", "work", "me"];
        assert_eq!(password_in("db:5432:work:me:a:b\\:c", wanted).as_deref(), Some("a:b:c"));
        assert_eq!(password_in("*:*:*:me:p", wanted).as_deref(), Some("p"));
        assert_eq!(password_in("db:5433:work:me:p", wanted), None);
        assert_eq!(password_in("# db:5432:work:me:p", wanted), None);
        assert_eq!(password_in("nonsense", wanted), None);
    }
}
