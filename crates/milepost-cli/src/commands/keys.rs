//! Master keys, shredding, and signed heads.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use milepost::store::ed25519_dalek::{SigningKey, VerifyingKey};
use milepost::store::{Error as StoreError, MasterKey, SignedHead, system_source};
use serde_json::json;

use crate::app::App;
use crate::args::Keys;
use crate::errors::{OnFile, Usage};
use crate::out::{count, plain};

pub async fn run(app: &mut App, command: Keys) -> Result<ExitCode> {
    match command {
        Keys::New { output } => new(app, output.as_deref())?,
        Keys::Show => show(app).await?,
        Keys::Rotate { to, data } => rotate(app, &to, data).await?,
        Keys::Shred { session, dry_run, yes } => shred(app, &session, dry_run, yes).await?,
        Keys::Sign { session, key } => sign(app, &session, &key).await?,
        Keys::Check { head, key } => return check(app, &head, key.as_deref()).await,
    }
    Ok(ExitCode::SUCCESS)
}

fn new(app: &App, output: Option<&Path>) -> Result<()> {
    let source = system_source().map_err(milepost::Error::from)?;
    let key = MasterKey::generate(&source);
    let Some(path) = output else {
        if app.out.json {
            return app.out.json(&json!({ "key": key.to_hex().as_str(), "fingerprint": key.fingerprint() }));
        }
        app.out.note("keep it safe: without it nothing that it encrypts can be read again");
        return app.out.line(key.to_hex().as_str());
    };
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).map_err(|error| {
        let place = path.display();
        match error.kind() {
            ErrorKind::AlreadyExists => anyhow::Error::from(Usage(format!(
                "making the key file {place}: there is a file already, which may be a key in use; name another"
            ))),
            _ => milepost::Error::file(format!("making the key file {place}"), error).into(),
        }
    })?;
    writeln!(file, "{}", key.to_hex().as_str())
        .and_then(|()| file.sync_all())
        .on_file(format!("writing the key file {}", path.display()))?;
    if app.out.json {
        return app.out.json(&json!({ "file": path, "fingerprint": key.fingerprint() }));
    }
    app.out.line(format!("key {} is in {}", key.fingerprint(), path.display()))
}

async fn show(app: &mut App) -> Result<()> {
    let settings = app.settings()?;
    let given = settings.keys(&|name| std::env::var(name).ok())?.master.map(|key| key.fingerprint());
    let is_begun = match app.no_store()? {
        Some(_) => false,
        None => app.engine_if_any().await?.is_some(),
    };
    if !is_begun {
        if app.out.json {
            return app.out.json(&json!({ "encrypted": given.is_some(), "fingerprint": given }));
        }
        return app.out.line(match given {
            Some(fingerprint) => {
                format!(
                    "workspace {} is not begun yet: it will be encrypted with key {fingerprint}",
                    settings.workspace
                )
            }
            None => format!("workspace {} is not begun yet: it will not be encrypted", settings.workspace),
        });
    }
    let engine = app.engine().await?;
    if app.out.json {
        return app.out.json(&json!({ "encrypted": engine.store().is_encrypted(), "fingerprint": given }));
    }
    app.out.line(match (engine.store().is_encrypted(), given) {
        (true, Some(fingerprint)) => {
            format!("workspace {} is encrypted with key {fingerprint}", engine.store().workspace())
        }
        (true, None) => format!("workspace {} is encrypted", engine.store().workspace()),
        (false, _) => format!("workspace {} is not encrypted", engine.store().workspace()),
    })
}

async fn rotate(app: &mut App, to: &Path, data: bool) -> Result<()> {
    let new = MasterKey::from_file(to).map_err(milepost::Error::from)?;
    let engine = app.engine().await?;
    engine.store().rotate_master_key(&new).await.map_err(milepost::Error::from)?;
    let rewritten = match data {
        true => Some(engine.store().rotate_data_key(&new).await.map_err(milepost::Error::from)?),
        false => None,
    };
    if app.out.json {
        return app.out.json(&json!({ "fingerprint": new.fingerprint(), "rewrapped": rewritten }));
    }
    app.out.line(format!("the workspace is now opened by key {}", new.fingerprint()))?;
    app.out.note("set MILEPOST_KEY or the key file to the new key; the old one opens nothing any more");
    Ok(())
}

async fn shred(app: &mut App, session: &str, dry_run: bool, yes: bool) -> Result<()> {
    let id = app.session(session).await?;
    let engine = app.engine().await?;
    if !engine.store().is_encrypted() {
        return Err(Usage(format!(
            "{id} has no key to destroy: the workspace is not encrypted; use `milepost sessions delete`"
        ))
        .into());
    }
    let store = engine.store();
    let info = store.session(id).await.map_err(milepost::Error::from)?;
    let branches = store.backend().children(store.workspace(), id).await.map_err(milepost::Error::from)?;
    let branches: BTreeSet<_> = branches.iter().map(|line| line.session).filter(|branch| *branch != id).collect();
    if dry_run {
        if app.out.json {
            return app.out.json(&json!({
                "sessionId": id, "shredded": false, "dryRun": true, "messages": info.messages(), "branches": branches,
            }));
        }
        let title = info.title.as_deref().map(|title| format!(" “{}”", plain(title))).unwrap_or_default();
        app.out.line(format!(
            "would destroy the key of {id}{title}: its {} could never be read again",
            count(info.messages(), "message")
        ))?;
        return branches.iter().try_for_each(|branch| {
            app.out.line(format!("would take its beginning from {branch}, which branched from it"))
        });
    }
    app.confirm(&format!("Destroy the key of {id}? What it holds can never be read again."), yes).await?;
    engine.store().shred(id).await.map_err(milepost::Error::from)?;
    if app.out.json {
        return app.out.json(&json!({ "sessionId": id, "shredded": true }));
    }
    app.out.line(format!("shredded {id}"))?;
    app.tell_lingering(&engine);
    Ok(())
}

fn hex(text: &str, what: &str) -> Result<[u8; 32]> {
    let text = text.trim();
    let wrong =
        || Usage(format!("{what} is no key: it does not have 64 hex digits; make one with `milepost keys new`"));
    if text.len() != 64 || !text.is_ascii() {
        return Err(wrong().into());
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(bytes)
}

/// A file with a key or a signed head in it.
fn small_text(path: &Path, what: &str) -> Result<String> {
    let name = format!("{what} {}", path.display());
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes))
        .on_reading(format!("reading {name}"))?;
    String::from_utf8(bytes)
        .map_err(|_| Usage(format!("{name} is not what it should be: it is no text; name another file")).into())
}

/// No key and no signed head is longer than this.
const MAX_FILE_BYTES: u64 = 64 << 10;

async fn sign(app: &mut App, session: &str, key: &Path) -> Result<()> {
    let text = small_text(key, "the signing key")?;
    let key = SigningKey::from_bytes(&hex(&text, &format!("the signing key {}", key.display()))?);
    let id = app.session(session).await?;
    let head = app.engine().await?.store().sign_head(id, &key).await.map_err(milepost::Error::from)?;
    app.out.json(&head)
}

async fn check(app: &mut App, head: &Path, key: Option<&str>) -> Result<ExitCode> {
    let text = small_text(head, "the signed head")?;
    let head: SignedHead = serde_json::from_str(&text).map_err(|error| {
        Usage(format!("{} holds no signed head: {error}; make one with `milepost keys sign`", head.display()))
    })?;
    let key = match key {
        Some(text) => hex(text, "the public key")?,
        None => head.key.0,
    };
    let key = VerifyingKey::from_bytes(&key)
        .map_err(|error| Usage(format!("the public key cannot be used: {error}; it is the `key` of a signed head")))?;
    let engine = app.engine().await?;
    engine.store().check_head(&head, &key).await.map_err(|error| match error {
        StoreError::Invalid { what, why } => anyhow::Error::from(Usage(format!(
            "{what} is not valid: {why}; name the public key of who signed it with --key, or get the head anew"
        ))),
        error => milepost::Error::from(error).into(),
    })?;
    if app.out.json {
        app.out.json(&json!({ "sessionId": head.session, "entries": head.length, "whole": true }))?;
    } else {
        app.out.line(format!("session {} still has what was signed: {}", head.session, count(head.length, "entry")))?;
    }
    Ok(ExitCode::SUCCESS)
}
