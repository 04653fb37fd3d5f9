//! A moment means the newest checkpoint taken by then, and which one that is gets told.

use crate::support::{Place, text};

#[test]
fn a_moment_means_the_newest_checkpoint_by_then_and_says_how_far_it_is() {
    let place = Place::new();
    let id = place.session("Times", &["one"]);
    let points: Vec<String> = ["first", "second"]
        .map(|label| {
            place.ok(&["messages", "add", &id, label]);
            let id = place.ok(&["checkpoint", &id, "--label", label]);
            std::thread::sleep(std::time::Duration::from_millis(300));
            id
        })
        .to_vec();
    let taken = |point: &str| {
        let at = place.json(&["sessions", "inspect", &id, point]);
        milepost::parse_time(text(&at, "/created_at")).unwrap()
    };
    let (first, second) = (taken(&points[0]), taken(&points[1]));
    // Far nearer to the second, and before it.
    let asked = second.plus_ms(-1).to_string();
    assert!(second.0 - first.0 > 2);
    let would = place.json(&["sessions", "restore", &id, &asked, "--dry-run"]);
    assert_eq!(text(&would, "/checkpointId"), points[0]);
    assert_eq!(would["offByMs"], first.0 - second.0 + 1);
    for args in [
        &["sessions", "restore", &id, &asked, "--dry-run"][..],
        &["sessions", "resume", &id, "--checkpoint", &asked, "--dry-run"],
        &["sessions", "inspect", &id, &asked],
        &["sessions", "diff", &format!("{id}@{asked}"), &id],
        &["messages", "list", &id, "--checkpoint", &asked],
        &["sessions", "branch", &id, "--checkpoint", &asked],
    ] {
        let ran = place.run(args);
        let end = &points[0][points[0].len() - 8..];
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        assert!(
            ran.err.contains(&format!("checkpoint {end} is the newest at or before {asked}")),
            "{args:?}: {}",
            ran.err
        );
        assert!(ran.err.contains(&format!("taken {first}")) && ran.err.contains("before it"), "{}", ran.err);
    }
    // To the millisecond it is the one of that moment.
    let exact = place.run(&["sessions", "restore", &id, &second.to_string(), "--dry-run"]);
    assert!(exact.out.contains(&points[1]) && exact.err.contains("at that very moment"), "{exact:?}");
    // Before everything there is only the first.
    let early = place.run(&["sessions", "restore", &id, "2001-01-01", "--dry-run"]);
    assert!(early.out.contains("(initial)") && early.err.contains("nothing was taken by 2001-01-01"), "{early:?}");
    let resumed = place.json(&["sessions", "resume", &id, "--checkpoint", &asked]);
    assert_eq!(
        (text(&resumed, "/resumedFrom"), text(&resumed, "/resumedFromTime")),
        (&*points[0], &*first.to_string())
    );
}
