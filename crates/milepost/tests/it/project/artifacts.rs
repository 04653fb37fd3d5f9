//! Artifacts, templates and logs.

use std::collections::BTreeMap;

use milepost::Error;
use milepost::config::Template;
use milepost::model::SessionId;
use milepost::project::{
    ArtifactKind, MAX_ARTIFACT_BYTES, MAX_ARTIFACT_VERSIONS, MAX_LINE_BYTES, NewArtifact, Owner, ProjectId,
    check_artifact_name, fill, placeholders,
};

use crate::project::support::{START, Scene};
use crate::support::Scratch;

fn project(id: &str) -> Owner {
    Owner::Project(ProjectId::new(id).unwrap())
}

fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn an_artifact_keeps_its_content_and_its_older_versions() {
    let scene = Scene::new().await;
    let (projects, owner) = (&scene.projects, project("p"));
    let session: SessionId = scene.store.source().id();
    for text in ["one", "two", "two"] {
        let new = NewArtifact { session: Some(session), ..NewArtifact::default() };
        projects.put_artifact(&owner, "foundation.md", text.as_bytes(), new).await.unwrap();
    }
    let (artifact, content) = projects.artifact(&owner, "foundation.md", None).await.unwrap();
    assert_eq!((content.as_slice(), artifact.versions.len()), (b"two".as_slice(), 2), "the same content is no version");
    assert_eq!((artifact.versions[0].session, artifact.versions[0].created), (Some(session), START));
    assert_eq!(projects.artifact(&owner, "foundation.md", Some(1)).await.unwrap().1, b"one");
    let missing = projects.artifact(&owner, "foundation.md", Some(9)).await.unwrap_err().to_string();
    assert!(missing.contains("kept: 1, 2"), "{missing}");
    assert!(projects.artifact(&project("other"), "foundation.md", None).await.is_err(), "each owner has its own");
    assert!(projects.artifact(&Owner::Session(session), "foundation.md", None).await.is_err());
    for (name, size) in [("empty", 0), ("large.bin", MAX_ARTIFACT_BYTES)] {
        let content: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        projects.put_artifact(&owner, name, &content, NewArtifact::default()).await.unwrap();
        assert!(projects.artifact(&owner, name, None).await.unwrap().1 == content, "{name}");
    }
    let names: Vec<_> = projects.artifacts(&owner).await.unwrap().into_iter().map(|artifact| artifact.name).collect();
    assert_eq!(names, ["empty", "foundation.md", "large.bin"]);
    projects.remove_artifact(&owner, "large.bin").await.unwrap();
    assert!(projects.artifact(&owner, "large.bin", None).await.is_err());
    assert_eq!(projects.artifacts(&owner).await.unwrap().len(), 2);
}

#[tokio::test]
async fn limits_and_bad_names_are_named() {
    let scene = Scene::new().await;
    let owner = project("p");
    let large = vec![0; MAX_ARTIFACT_BYTES + 1];
    let error = scene.projects.put_artifact(&owner, "a", &large, NewArtifact::default()).await.unwrap_err();
    assert!(error.to_string().contains("MAX_ARTIFACT_BYTES is 8388608"), "{error}");
    let long = "x".repeat(256);
    for name in
        ["", "/etc/passwd", "../a", "a/../b", "a//b", "a/.", "a\\b", "c:d", "a\0", "a\n", " a", "a ", "a.", "a/", &long]
    {
        assert!(matches!(check_artifact_name(name), Err(Error::Refused { .. })), "{name:?}");
        assert!(scene.projects.put_artifact(&owner, name, b"", NewArtifact::default()).await.is_err());
        assert!(scene.projects.artifact(&owner, name, None).await.is_err());
    }
    for name in ["foundation.md", "docs/a b.md", ".hidden", "ünï.yaml", "a..b"] {
        check_artifact_name(name).unwrap();
    }
}

#[tokio::test]
async fn the_oldest_versions_go_and_that_is_said() {
    let scene = Scene::new().await;
    let owner = project("p");
    let mut dropped = Vec::new();
    for number in 0..MAX_ARTIFACT_VERSIONS + 2 {
        let content = number.to_string();
        let stored =
            scene.projects.put_artifact(&owner, "a", content.as_bytes(), NewArtifact::default()).await.unwrap();
        dropped.extend(stored.dropped);
    }
    assert_eq!(dropped, [1, 2]);
    let (artifact, content) = scene.projects.artifact(&owner, "a", None).await.unwrap();
    assert_eq!((artifact.versions.len(), content.as_slice()), (MAX_ARTIFACT_VERSIONS, b"101".as_slice()));
    assert_eq!(scene.store.records("artifact-part", None, 1000).await.unwrap().len(), MAX_ARTIFACT_VERSIONS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_at_the_same_time_lose_no_version_and_no_line() {
    let scene = Scene::new().await;
    let owner = project("p");
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let (projects, owner) = (scene.projects.clone(), owner.clone());
            tokio::spawn(async move {
                for number in 0..10 {
                    let text = format!("{writer} {number}");
                    projects.put_artifact(&owner, "a", text.as_bytes(), NewArtifact::default()).await.unwrap();
                    projects.log(&owner, &text).await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let (artifact, _) = scene.projects.artifact(&owner, "a", None).await.unwrap();
    assert_eq!(artifact.versions.last().unwrap().number, 80);
    for version in &artifact.versions {
        scene.projects.artifact(&owner, "a", Some(version.number)).await.unwrap();
    }
    let lines = scene.projects.log_lines(&owner, 0, 1000).await.unwrap();
    let mut texts: Vec<_> = lines.into_iter().map(|line| line.text).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 80);
}

#[tokio::test]
async fn a_log_is_read_from_any_line() {
    let scene = Scene::new().await;
    let owner = Owner::Session(scene.store.source().id());
    assert_eq!(scene.projects.log_length(&owner).await.unwrap(), 0);
    for number in 0..150 {
        assert_eq!(scene.projects.log(&owner, &format!("line {number}")).await.unwrap(), number + 1);
    }
    assert_eq!(scene.projects.log(&owner, "two\nlines\n").await.unwrap(), 152);
    assert_eq!(scene.projects.log(&owner, "").await.unwrap(), 152);
    for (from, limit, first, count) in
        [(0, 1000, "line 0", 152), (63, 3, "line 63", 3), (128, 5, "line 128", 5), (151, 9, "lines", 1)]
    {
        let lines = scene.projects.log_lines(&owner, from, limit).await.unwrap();
        assert_eq!((lines[0].text.as_str(), lines.len(), lines[0].at), (first, count, START));
    }
    assert!(scene.projects.log_lines(&owner, 152, 1).await.unwrap().is_empty());
    let error = scene.projects.log(&owner, &"x".repeat(MAX_LINE_BYTES + 1)).await.unwrap_err();
    assert!(error.to_string().contains("MAX_LINE_BYTES is 8192"), "{error}");
    scene.projects.put_artifact(&owner, "a", b"content", NewArtifact::default()).await.unwrap();
    scene.projects.log(&project("kept"), "kept").await.unwrap();
    scene.projects.forget(&owner).await.unwrap();
    assert_eq!(scene.projects.log_length(&owner).await.unwrap(), 0);
    assert!(scene.projects.artifacts(&owner).await.unwrap().is_empty());
    for kind in ["artifact-part", "agent-log-group"] {
        assert!(scene.store.records(kind, None, 10).await.unwrap().is_empty(), "{kind}");
    }
    assert_eq!(scene.projects.log_length(&project("kept")).await.unwrap(), 1);
}

#[tokio::test]
async fn artifacts_are_made_of_templates() {
    let scene = Scene::new().await;
    let owner = project("p");
    let template = NewArtifact { kind: ArtifactKind::Template, ..NewArtifact::default() };
    let text = b"# {{title}}\n\n{{ who }} and \\{{literally}}\n{{title}}\n";
    scene.projects.put_artifact(&owner, "brief", text, template).await.unwrap();
    let given = values(&[("title", "{{who}}"), ("who", "Ada")]);
    scene.projects.make_artifact(&owner, "brief.md", (&owner, "brief"), &given).await.unwrap();
    let (made, content) = scene.projects.artifact(&owner, "brief.md", None).await.unwrap();
    let content = String::from_utf8(content).unwrap();
    assert_eq!(content, "# {{who}}\n\nAda and {{literally}}\n{{who}}\n", "a value is not looked at again");
    assert_eq!(made.versions[0].template.as_deref(), Some("brief"));
    let missing = values(&[("title", "x")]);
    let error = scene.projects.make_artifact(&owner, "b", (&owner, "brief"), &missing).await.unwrap_err();
    assert!(error.to_string().contains("line 3 has the placeholder {{who}}"), "{error}");
    assert!(
        scene.projects.make_artifact(&owner, "b", (&owner, "brief.md"), &given).await.is_err(),
        "a document is no template"
    );
}

#[test]
fn broken_placeholders_are_named_with_their_line() {
    assert_eq!(placeholders("{{a}} {{ b.c-d }} {{a}}").unwrap().into_iter().collect::<Vec<_>>(), ["a", "b.c-d"]);
    for wrong in ["x\n{{", "x\n{{}}", "x\n{{a b}}", "x\n{{a\n", "x\n{{{{a}}}}"] {
        let error = fill("t", wrong, &values(&[("a", "1")])).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }
    let bomb = "{{a}}".repeat(100);
    let error = fill("t", &bomb, &values(&[("a", &"x".repeat(1 << 20))])).unwrap_err().to_string();
    assert!(error.contains("MAX_ARTIFACT_BYTES"), "{error}");
}

#[tokio::test]
async fn a_configured_template_does_not_lead_out_of_its_directory() {
    let scene = Scene::new().await;
    let below = scene.directory("config");
    std::fs::write(scene.path("secret"), "secret").unwrap();
    std::fs::write(below.join("ok.md"), "# {{a}}").unwrap();
    let file = |path: &str| Template::File { below: below.clone(), path: path.into() };
    assert_eq!(file("ok.md").text().unwrap(), "# {{a}}");
    assert!(file("../secret").text().is_err() && file(".").text().is_err() && file("none").text().is_err());
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(scene.path("secret"), below.join("link")).unwrap();
        assert!(file("link").text().is_err());
    }
}

proptest::proptest! {
    #[test]
    fn filling_in_never_panics_and_keeps_plain_text(text in "[a{}\\\\ \n]{0,40}") {
        let filled = fill("t", &text, &values(&[("a", "1")]));
        if !text.contains("{{") {
            proptest::prop_assert_eq!(filled.unwrap(), text);
        }
    }
}

const TOKEN: &str = "ghp_x7Kq2mVt9RbL4nWc8YpZ1sDf6GhJ3kAe5UoT";

#[tokio::test]
async fn through_the_engine_texts_are_kept_without_their_secrets() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let (projects, owner) = (milepost.projects().await.unwrap(), project("p"));
    let text = format!("clone with {TOKEN}\n");
    for _ in 0..2 {
        projects.put_artifact(&owner, "a.md", text.as_bytes(), NewArtifact::default()).await.unwrap();
    }
    let (artifact, content) = projects.artifact(&owner, "a.md", None).await.unwrap();
    assert_eq!(String::from_utf8(content).unwrap(), "clone with [redacted:github-token]\n");
    assert_eq!(artifact.versions.len(), 1, "the same content is no version");

    let new = NewArtifact { kind: ArtifactKind::Template, ..NewArtifact::default() };
    projects.put_artifact(&owner, "t.md", format!("{TOKEN} {{{{what}}}}").as_bytes(), new).await.unwrap();
    let secret = values(&[("what", TOKEN)]);
    projects.make_artifact(&owner, "made.md", (&owner, "t.md"), &secret).await.unwrap();
    let made = projects.artifact(&owner, "made.md", None).await.unwrap().1;
    assert_eq!(String::from_utf8(made).unwrap(), "[redacted:github-token] [redacted:github-token]");

    let key =
        "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7\n-----END PRIVATE KEY-----";
    projects.log(&owner, &format!("began\nwith {TOKEN}\n{key}\nended")).await.unwrap();
    let lines = projects.log_lines(&owner, 0, 100).await.unwrap();
    let log: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
    assert!(!log.join("\n").contains(TOKEN) && !log.join("\n").contains("MIIE"), "{log:?}");
    assert_eq!((log[0], log[log.len() - 1]), ("began", "ended"));

    let binary = [&[0xff, 0xfe][..], TOKEN.as_bytes()].concat();
    projects.put_artifact(&owner, "a.bin", &binary, NewArtifact::default()).await.unwrap();
    let kept = projects.artifact(&owner, "a.bin", None).await.unwrap().1;
    assert_eq!(kept, [&[0xff, 0xfe][..], b"[redacted:github-token]"].concat(), "also in what is no UTF-8");
    let named = projects.put_artifact(&owner, TOKEN, b"x", NewArtifact::default()).await.unwrap_err().to_string();
    assert!(named.contains("looks like a secret") && !named.contains(TOKEN), "{named}");
}

#[tokio::test]
async fn artifacts_that_are_kept_with_a_session_are_counted() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(milepost::NewSession::default()).await.unwrap();
    let owner = Owner::Session(session.id());
    let projects = milepost.projects().await.unwrap();
    for name in ["foundation.md", "dashboard.yaml"] {
        projects.put_artifact(&owner, name, b"made", NewArtifact::default()).await.unwrap();
    }
    assert_eq!(milepost.analytics(session.id()).await.unwrap().artifacts_generated, 2);
    // Those that memory names are the same ones.
    session.set(&[milepost::parse_set("memory.currentArtifacts=[\"foundation.md\"]").unwrap()]).await.unwrap();
    assert_eq!(milepost.analytics(session.id()).await.unwrap().artifacts_generated, 2);
    let all = milepost.overview(&milepost::SessionQuery::default(), |_| ()).await.unwrap();
    assert_eq!(all.total.artifacts_generated, 2);
}
