//! Which project a directory belongs to.

use std::path::Path;
use std::process::Command;

use milepost::model::{Message, Role, SessionPatch, Status};
use milepost::project::{KnownBy, ProjectId, Projects, may_read};
use milepost::store::{Append, Claim, NewSession, Options, SessionQuery, Store};

use crate::project::support::{Scene, commit, git};

#[tokio::test]
async fn a_moved_repository_keeps_its_project() {
    let scene = Scene::new().await;
    let before = scene.repository("before", "one");
    let first = scene.projects.identify(&before).await.unwrap();
    assert_eq!((first.by, first.project.name.as_str()), (KnownBy::New, "before"));
    assert!(first.project.root_commit().is_some_and(|root| root.len() == 40));
    let after = scene.path("after");
    std::fs::rename(&before, &after).unwrap();
    commit(&after, "more", "two");
    let second = scene.projects.identify(&after).await.unwrap();
    assert_eq!((second.by, &second.project.id), (KnownBy::RootCommit, &first.project.id));
    assert_eq!(second.project.paths.len(), 2);
    assert!(second.project.paths[1].ends_with("/after"));
    assert_eq!(scene.projects.all().await.unwrap().len(), 1);
    assert!(!after.join(".milepost").exists(), "nothing is written into the directory");
}

#[tokio::test]
async fn clones_worktrees_and_subdirectories_are_the_same_project() {
    let scene = Scene::new().await;
    let origin = scene.repository("origin", "one");
    let id = scene.projects.identify(&origin).await.unwrap().project.id;
    git(scene.dir.path(), &["clone", "-q", "origin", "clone"]);
    git(&origin, &["worktree", "add", "-q", "../tree", "-b", "side"]);
    std::fs::create_dir_all(origin.join("a/b")).unwrap();
    for dir in ["clone", "tree", "origin/a/b"] {
        assert_eq!(scene.projects.identify(&scene.path(dir)).await.unwrap().project.id, id, "{dir}");
    }
    let other = Scene::seeded(9).await;
    let elsewhere = other.projects.identify(&scene.path("clone")).await.unwrap();
    assert_eq!(elsewhere.project.id, id, "the same repository has the same id in every store");
    let foreign = scene.repository("foreign", "something else");
    assert_ne!(scene.projects.identify(&foreign).await.unwrap().project.id, id);
}

#[tokio::test]
async fn orphan_branches_and_joined_histories_stay_in_their_project() {
    let scene = Scene::new().await;
    let dir = scene.repository("repo", "one");
    let id = scene.projects.identify(&dir).await.unwrap().project.id;
    git(&dir, &["checkout", "-q", "--orphan", "pages"]);
    commit(&dir, "page", "an orphan");
    assert_eq!(scene.projects.identify(&dir).await.unwrap().project.id, id);
    git(&dir, &["checkout", "-q", "main"]);
    git(&dir, &["merge", "-q", "--allow-unrelated-histories", "-m", "join", "pages", "-X", "ours"]);
    let moved = scene.path("moved");
    std::fs::rename(&dir, &moved).unwrap();
    let found = scene.projects.identify(&moved).await.unwrap();
    assert_eq!(found.project.id, id);
    assert_eq!(found.project.root_commits.len(), 2, "both beginnings are known now");
}

#[tokio::test]
async fn a_plain_directory_is_known_by_its_path_and_after_a_move() {
    let scene = Scene::new().await;
    let dir = scene.directory("plain");
    let first = scene.projects.identify(&dir).await.unwrap();
    assert_eq!((first.by, first.project.root_commit()), (KnownBy::New, None));
    assert_eq!(scene.projects.identify(&dir).await.unwrap().by, KnownBy::Path);
    let moved = scene.directory("elsewhere").join("renamed");
    std::fs::rename(&dir, &moved).unwrap();
    let found = scene.projects.identify(&moved).await.unwrap();
    assert_eq!((found.by, &found.project.id), (KnownBy::Directory, &first.project.id));
    assert!(found.project.paths.last().unwrap().ends_with("/elsewhere/renamed"), "{:?}", found.project.paths);
    assert_eq!(scene.projects.identify(&moved).await.unwrap().by, KnownBy::Path);
    assert_eq!(std::fs::read_dir(&moved).unwrap().count(), 0, "nothing is written into the directory");
    // What is made where it was is another project, and so is a copy, and a directory that is made after it was removed.
    let mut others = vec![scene.projects.identify(&scene.directory("plain")).await.unwrap()];
    others.push(scene.projects.identify(&scene.directory("copy")).await.unwrap());
    std::fs::remove_dir(&moved).unwrap();
    others.push(scene.projects.identify(&scene.directory("next")).await.unwrap());
    let mut ids: Vec<ProjectId> = others.iter().map(|other| other.project.id.clone()).collect();
    assert!(others.iter().all(|other| other.by == KnownBy::New), "{others:?}");
    ids.push(first.project.id);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4);
}

/// Nothing of one that was copied from another file system is the same: somebody says so.
#[tokio::test]
async fn a_directory_is_linked_to_the_project_that_somebody_names() {
    let scene = Scene::new().await;
    let first = scene.projects.identify(&scene.directory("plain")).await.unwrap();
    let copy = scene.directory("copy");
    let stranger = scene.projects.identify(&copy).await.unwrap();
    assert_ne!(stranger.project.id, first.project.id);
    let linked = scene.projects.link(&first.project.id, &copy).await.unwrap();
    assert_eq!(linked.id, first.project.id);
    assert_eq!(scene.projects.identify(&copy).await.unwrap().project.id, first.project.id);
    assert!(scene.projects.project(&stranger.project.id).await.unwrap().paths.is_empty());
    let moved = scene.path("moved");
    std::fs::rename(&copy, &moved).unwrap();
    assert_eq!(scene.projects.identify(&moved).await.unwrap().project.id, first.project.id);
}

/// A directory may be called like a secret: what is kept of it is not, and it is recognised all the same.
#[tokio::test]
async fn a_secret_in_a_directorys_name_is_not_kept() {
    const TOKEN: &str = "ghp_x7Kq2mVt9RbL4nWc8YpZ1sDf6GhJ3kAe5UoT";
    let scratch = crate::support::Scratch::new();
    let milepost = scratch.open().await;
    let dir = scratch.dir.path().join(TOKEN);
    std::fs::create_dir_all(dir.join("src")).unwrap();
    let first = milepost.here(&dir).await.unwrap();
    assert!(first.project.name.starts_with("[redacted:"), "{:?}", first.project);
    assert_eq!(milepost.here(&dir).await.unwrap().project, first.project);
    let inside = milepost.here(&dir.join("src")).await.unwrap();
    assert_eq!(inside.project.name, "src");
    let id = ProjectId::new(inside.project.id.to_string()).unwrap();
    milepost.projects().await.unwrap().rename(&id, TOKEN).await.unwrap();
    milepost.projects().await.unwrap().open_project(&ProjectId::new("own").unwrap(), TOKEN).await.unwrap();
    let session = milepost.create(milepost::NewSession::default()).await.unwrap();
    session.collect_context(&dir).await.unwrap();
    let (id, moved) = (session.id(), scratch.dir.path().join("moved"));
    session.release().await.unwrap();
    let resumed = milepost.resume(id, milepost::Resume::latest()).await.unwrap();
    assert!(resumed.notes.iter().any(|note| note.contains("has a secret in it")), "{:?}", resumed.notes);
    drop(resumed);
    std::fs::rename(&dir, &moved).unwrap();
    assert_eq!(milepost.here(&moved).await.unwrap().project.id, first.project.id);
    milepost.close().await.unwrap();
    for file in ["milepost.db", "milepost.db-wal"] {
        let bytes = std::fs::read(scratch.dir.path().join(file)).unwrap_or_default();
        assert!(!bytes.windows(TOKEN.len()).any(|part| part == TOKEN.as_bytes()), "{file}");
    }
}

#[tokio::test]
async fn a_directory_that_becomes_a_repository_stays_its_project() {
    let scene = Scene::new().await;
    let dir = scene.directory("young");
    let id = scene.projects.identify(&dir).await.unwrap().project.id;
    git(&dir, &["init", "-q"]);
    assert_eq!(scene.projects.identify(&dir).await.unwrap().project.id, id, "a repository without a commit");
    commit(&dir, "a", "first");
    assert_eq!(scene.projects.identify(&dir).await.unwrap().project.id, id);
    let moved = scene.path("grown");
    std::fs::rename(&dir, &moved).unwrap();
    let found = scene.projects.identify(&moved).await.unwrap();
    assert_eq!((found.by, found.project.id), (KnownBy::RootCommit, id));
}

#[tokio::test]
async fn another_repository_at_the_same_place_is_another_project() {
    let scene = Scene::new().await;
    let dir = scene.repository("place", "one");
    let first = scene.projects.identify(&dir).await.unwrap().project;
    std::fs::rename(&dir, scene.path("kept")).unwrap();
    let again = scene.repository("place", "quite another");
    let second = scene.projects.identify(&again).await.unwrap();
    assert_eq!(second.by, KnownBy::New);
    assert_ne!(second.project.id, first.id);
    assert_eq!(scene.projects.identify(&scene.path("kept")).await.unwrap().project.id, first.id);
    // History begun anew: the user says that it is the same.
    let linked = scene.projects.link(&first.id, &again).await.unwrap();
    assert_eq!(linked.root_commits.len(), 2);
    std::fs::rename(&again, scene.path("moved")).unwrap();
    assert_eq!(scene.projects.identify(&scene.path("moved")).await.unwrap().project.id, first.id);
}

#[tokio::test]
async fn a_shallow_clone_says_that_it_is_known_by_its_path() {
    let scene = Scene::new().await;
    let dir = scene.repository("deep", "one");
    commit(&dir, "b", "two");
    let url = format!("file://{}", dir.display());
    git(scene.dir.path(), &["clone", "-q", "--depth", "1", &url, "shallow"]);
    let shallow = scene.projects.identify(&scene.path("shallow")).await.unwrap();
    assert!(shallow.note.is_some_and(|note| note.contains("shallow")));
    assert_eq!(shallow.project.root_commit(), None, "its oldest commit is not the root");
    git(&scene.path("shallow"), &["fetch", "-q", "--unshallow"]);
    let whole = scene.projects.identify(&scene.path("shallow")).await.unwrap();
    assert_eq!(whole.project.id, shallow.project.id);
    assert!(whole.project.root_commit().is_some());
}

/// Gives the newest commit a signature, so that git would ask a program about it.
fn sign(dir: &Path) {
    let plain = Command::new("git").current_dir(dir).args(["cat-file", "commit", "HEAD"]).output().unwrap().stdout;
    let plain = String::from_utf8(plain).unwrap();
    let signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n abc\n -----END PGP SIGNATURE-----\n";
    let signed = plain.replacen("\n\n", &format!("\n{signature}\n"), 1);
    let file = dir.join(".git/signed");
    std::fs::write(&file, signed).unwrap();
    let hash = Command::new("git").current_dir(dir).args(["hash-object", "-t", "commit", "-w", ".git/signed"]).output();
    let hash = String::from_utf8(hash.unwrap().stdout).unwrap();
    git(dir, &["update-ref", "HEAD", hash.trim()]);
}

#[tokio::test]
async fn a_hostile_repository_runs_nothing() {
    let scene = Scene::new().await;
    let dir = scene.repository("hostile", "one");
    let proof = scene.path("proof");
    let script = scene.path("evil.sh");
    std::fs::write(&script, format!("#!/bin/sh\ntouch {}\n", proof.display())).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = script.display().to_string();
    for key in [
        "core.fsmonitor",
        "core.pager",
        "gpg.program",
        "core.sshCommand",
        "diff.external",
        "core.alternateRefsCommand",
        "pager.log",
    ] {
        git(&dir, &["config", key, &script]);
    }
    git(&dir, &["config", "log.showSignature", "true"]);
    sign(&dir);
    // The trap works: git itself, asked without care, runs the program.
    git(&dir, &["log", "-1"]);
    assert!(proof.exists());
    std::fs::remove_file(&proof).unwrap();
    scene.projects.identify(&dir).await.unwrap();
    let context = milepost::project::collect(&dir, &Default::default(), crate::project::support::START).await.unwrap();
    assert_eq!(context.recent_commits.len(), 1);
    assert!(!proof.exists(), "a program of the repository was run");
}

#[tokio::test]
async fn hostile_names_are_taken_and_shown_harmlessly() {
    let scene = Scene::new().await;
    for name in ["-rf", "a\nb", "ünï cödé", "\u{1b}[31mred", "'; drop table --"] {
        let plain = scene.directory(&format!("plain/{name}"));
        let found = scene.projects.identify(&plain).await.unwrap().project;
        assert!(!found.name.chars().any(char::is_control), "{:?}", found.name);
        let repository = scene.repository(&format!("repository/{name}"), name);
        let found = scene.projects.identify(&repository).await.unwrap();
        assert!(found.project.root_commit().is_some(), "{name:?}");
        assert_eq!(scene.projects.identify(&repository).await.unwrap().project.id, found.project.id);
    }
    assert!(scene.projects.identify(&scene.path("none")).await.is_err());
    std::fs::write(scene.path("file"), "").unwrap();
    assert!(scene.projects.identify(&scene.path("file")).await.is_err());
    for id in ["", " a", "a\n", &"x".repeat(200)] {
        assert!(ProjectId::new(id).is_err(), "{id:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_that_look_at_once_find_one_project() {
    let scene = Scene::new().await;
    let plain = scene.directory("plain");
    let repository = scene.repository("repo", "one");
    for dir in [plain, repository] {
        let looks: Vec<_> = (0..8)
            .map(|_| {
                let (projects, dir) = (scene.projects.clone(), dir.clone());
                tokio::spawn(async move { projects.identify(&dir).await.unwrap().project.id })
            })
            .collect();
        let mut ids = Vec::new();
        for look in looks {
            ids.push(look.await.unwrap());
        }
        ids.dedup();
        assert_eq!(ids.len(), 1);
    }
    assert_eq!(scene.projects.all().await.unwrap().len(), 2);
}

#[tokio::test]
async fn the_index_lists_the_sessions_of_a_project() {
    let scene = Scene::new().await;
    let mine = scene.projects.open_project(&ProjectId::new("campaign").unwrap(), "Campaign").await.unwrap();
    let claim = Claim::new("a test");
    for (project, task) in [("campaign", "t1"), ("other", "t2"), ("campaign", "t3")] {
        let writer = scene.store.create(NewSession::default(), &claim).await.unwrap();
        let patch = SessionPatch::new().project(project).task(task).stage("in_dev").agent("dev").feature("f");
        writer.append(Append::new().patch(patch).message(Message::new(Role::User, "hello"))).await.unwrap();
    }
    let index = scene.projects.index(&mine.id).await.unwrap();
    assert_eq!((index.project_name.as_str(), index.sessions.len()), ("Campaign", 2));
    let row = serde_json::to_value(&index.sessions[0]).unwrap();
    assert_eq!((&row["messageCount"], &row["state"], &row["agentType"]), (&1.into(), &"in_dev".into(), &"dev".into()));
    let query = SessionQuery { task: Some("t1".into()), status: vec![Status::Active], ..SessionQuery::default() };
    assert_eq!(scene.projects.sessions(&mine.id, &query).await.unwrap().sessions.len(), 1);
    let again = scene.projects.open_project(&mine.id, "Another name").await.unwrap();
    assert_eq!(again.name, "Campaign");
    assert_eq!(scene.projects.rename(&mine.id, " New\n ").await.unwrap().name, "New");
    assert!(scene.projects.rename(&mine.id, "\n").await.is_err());
    assert!(scene.projects.index(&ProjectId::new("none").unwrap()).await.is_err());
}

#[tokio::test]
async fn no_path_and_no_name_can_be_read_from_an_encrypted_store() {
    let scene = Scene::new().await;
    let dir = scene.directory("Confidential-Merger");
    let path = scene.path("store.db");
    let mut options = Options::default();
    options.keys.master = Some(milepost::store::MasterKey::from_bytes([7; 32]));
    let store = Store::open(&format!("sqlite:{}", path.display()), options).await.unwrap();
    let projects = Projects::open(&store).await.unwrap();
    let project = projects.identify(&dir).await.unwrap().project;
    let owner = milepost::project::Owner::Project(project.id);
    projects.put_artifact(&owner, "Confidential-Merger.md", b"Confidential-Merger", Default::default()).await.unwrap();
    projects.log(&owner, "Confidential-Merger").await.unwrap();
    store.close().await.unwrap();
    for entry in std::fs::read_dir(scene.dir.path()).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        let bytes = std::fs::read(entry.path()).unwrap();
        let secret = b"Confidential-Merger";
        assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{:?}", entry.path());
    }
}

#[test]
fn summaries_are_read_by_those_who_may() {
    let rules = milepost::config::Summaries::default();
    let yes = [("qa", "dev"), ("merge", "dev"), ("merge", "qa"), ("pm", "anyone"), ("dev", "dev")];
    let no = [("dev", "qa"), ("qa", "pm"), ("qa", "merge"), ("stranger", "dev"), ("", "")];
    assert!(yes.iter().all(|(reader, of)| may_read(reader, Some(of), &rules)));
    assert!(no.iter().all(|(reader, of)| !may_read(reader, Some(of), &rules)));
    assert!(may_read("pm", None, &rules) && !may_read("qa", None, &rules));
    let mut own = rules;
    own.readers.insert("dev".into(), ["qa".to_owned()].into());
    assert!(may_read("dev", Some("qa"), &own));
}
