//! Stores in memory and real repositories in scratch directories.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use milepost::model::{ManualClock, Source, Timestamp};
use milepost::project::Projects;
use milepost::store::{Options, Store};

/// A moment to begin with: 2026-01-01.
pub const START: Timestamp = Timestamp(1_767_225_600_000);

/// A scratch directory and the projects of a fresh store.
pub struct Scene {
    pub dir: tempfile::TempDir,
    pub store: Store,
    pub projects: Projects,
}

impl Scene {
    pub async fn new() -> Self {
        Self::seeded(1).await
    }

    pub async fn seeded(seed: u64) -> Self {
        let mut options = Options::default();
        options.source = Some(Source::seeded(seed, Arc::new(ManualClock::new(START))));
        let store = Store::open("memory:", options).await.unwrap();
        let projects = Projects::open(&store).await.unwrap();
        Self { dir: tempfile::tempdir().unwrap(), store, projects }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// A repository with one commit whose content is `text`.
    pub fn repository(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory(name);
        git(&path, &["init", "-q", "-b", "main"]);
        commit(&path, "README.md", text);
        path
    }
}

pub fn git(dir: &Path, args: &[&str]) {
    let mut command = Command::new("git");
    command.current_dir(dir).args([
        "-c",
        "user.name=Ada",
        "-c",
        "user.email=ada@example.org",
        "-c",
        "commit.gpgsign=false",
    ]);
    command.args(["-c", "protocol.file.allow=always"]).args(args).env_remove("GIT_DIR");
    let out = command.output().unwrap();
    assert!(out.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

pub fn commit(dir: &Path, file: &str, text: &str) {
    std::fs::write(dir.join(file), text).unwrap();
    git(dir, &["add", "."]);
    git(dir, &["commit", "-q", "-m", text]);
}
