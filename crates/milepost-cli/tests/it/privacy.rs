//! What agents say is for their user alone: files and directories that are made can be read by nobody else, those that were
//! there keep their modes.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::Place;

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode()
        & 0o777
}

fn all_below(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            all_below(&path, found);
        }
        if !path.is_symlink() {
            found.push(path);
        }
    }
}

fn is_private(path: &Path) {
    let expected = if path.is_dir() { 0o700 } else { 0o600 };
    assert_eq!(mode(path), expected, "{}", path.display());
}

#[test]
fn stores_backups_and_exports_are_made_for_this_user_alone() {
    let place = Place::new();
    let id = place.session("Private", &["hush"]);
    let mut open = place.command(["messages", "tail", id.as_str()]).spawn().unwrap();
    std::io::Read::read(open.stdout.as_mut().unwrap(), &mut [0; 16]).unwrap();
    place.ok(&["messages", "add", &id, "more"]);
    let beside: Vec<_> =
        ["", "-wal", "-shm"].map(|end| place.store().with_file_name(format!("milepost.db{end}"))).to_vec();
    beside.iter().for_each(|file| is_private(file));
    open.kill().unwrap();
    open.wait().unwrap();
    is_private(place.store().parent().unwrap());

    place.ok(&["backup", "backup.db"]);
    place.ok(&["push", &id, "sqlite:other.db"]);
    place.ok(&["migrate", &place.url(), "sqlite:moved.db"]);
    place.ok(&["export", "--sqlite", "tables.db"]);
    ["backup.db", "other.db", "moved.db", "tables.db"].iter().for_each(|name| is_private(&place.file(name)));
    let bucket = format!("file://{}", place.file("bucket").display());
    place.ok(&["push", &id, &bucket]);
    is_private(&place.file("bucket"));

    for format in ["bundle", "markdown", "jsonl", "files", "tree", "task", "plan", "feature", "graph", "sqlite"] {
        let out = place.file(&format!("out-{format}"));
        place.ok(&["sessions", "export", &id, "-f", format, "-o", out.to_str().unwrap()]);
        is_private(&out);
        let mut below = Vec::new();
        if out.is_dir() {
            all_below(&out, &mut below);
        }
        below.iter().for_each(|path| is_private(path));
    }
}

#[test]
fn what_was_there_keeps_its_mode() {
    let place = Place::new();
    let id = place.session("Shared", &["hello"]);
    let open = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    open(&place.store(), 0o640);
    open(place.store().parent().unwrap(), 0o755);
    place.ok(&["messages", "add", &id, "more"]);
    assert_eq!((mode(&place.store()), mode(place.store().parent().unwrap())), (0o640, 0o755));
    for format in ["markdown", "sqlite"] {
        let out = place.write(&format!("notes-{format}"), "mine");
        open(&out, 0o644);
        place.ok(&["sessions", "export", &id, "-f", format, "-o", out.to_str().unwrap(), "--force"]);
        assert_eq!(mode(&out), 0o644, "{format}");
    }
    let dir = place.file("files");
    place.ok(&["sessions", "export", &id, "-f", "files", "-o", dir.to_str().unwrap()]);
    let chat = dir.join(format!("chat_{id}.json"));
    open(&chat, 0o644);
    place.ok(&["sessions", "export", &id, "-f", "files", "-o", dir.to_str().unwrap(), "--force"]);
    assert_eq!(mode(&chat), 0o644);
}
