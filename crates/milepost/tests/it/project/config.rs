//! What is set by whom, and what is said about mistakes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use milepost::Error;
use milepost::config::{self, Diagnostic, KeySource, Loader, Origin, Settings, Severity, Work, policy_patch};
use milepost::model::{PolicyPatch, Trigger};
use serde_json::json;

/// A directory with a configuration, and an environment.
pub struct Scene {
    pub dir: tempfile::TempDir,
    pub variables: BTreeMap<String, String>,
}

impl Scene {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        std::fs::create_dir_all(&home).unwrap();
        let variables = BTreeMap::from([("HOME".to_owned(), home.display().to_string())]);
        Self { dir, variables }
    }

    pub fn with(text: &str) -> Self {
        let scene = Self::new();
        std::fs::write(scene.file(), text).unwrap();
        scene
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    pub fn file(&self) -> PathBuf {
        self.dir.path().join("milepost.yaml")
    }

    pub fn loader(&self) -> Loader<'_> {
        Loader::new(self.dir.path(), |name| self.variables.get(name).cloned())
    }

    pub fn load(&self) -> Settings {
        self.loader().load().unwrap()
    }

    fn problems(&self) -> Vec<Diagnostic> {
        self.loader().check()
    }
}

/// The only problem of a text, as `line:column key: why; instead`.
fn problem(text: &str) -> String {
    let scene = Scene::with(text);
    let mut found = scene.problems();
    found.retain(|one| one.severity == Severity::Error);
    assert_eq!(found.len(), 1, "{found:#?}");
    let Origin::File { line, column, .. } = &found[0].origin else { panic!("{:?}", found[0]) };
    format!("{line}:{column} {}: {}; {}", found[0].key, found[0].why, found[0].instead)
}

#[test]
fn nothing_set_gives_the_documented_defaults() {
    let settings = Scene::new().load();
    assert!(settings.store.expose().starts_with("sqlite:"));
    assert!(settings.store.expose().ends_with("home/.local/share/milepost/milepost.db"));
    assert_eq!(settings.policy, Work::Chat.policy());
    assert_eq!((settings.policy.every_messages, settings.policy.every_seconds), (10, 300));
    assert_eq!(settings.policy.retention.max_checkpoints, 100);
    assert_eq!(settings.plans.retention.max_checkpoints, 10);
    assert_eq!(settings.supervised.retention.max_checkpoints, 10);
    assert_eq!(settings.supervised.every_seconds, 600);
    assert_eq!((settings.budget.tokens, settings.budget.last_messages), (100_000, 50));
    assert!(settings.redaction.enabled && !settings.encryption.enabled && settings.warnings().is_empty());
    let shared = Scene::new().variable("XDG_DATA_HOME", "/data").load();
    assert_eq!(shared.store.expose(), "sqlite:/data/milepost/milepost.db");
}

#[test]
fn the_example_has_every_setting_and_equals_the_defaults() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/milepost.yaml");
    assert_eq!(config::check(&path), []);
    let scene = Scene::new();
    let example = scene.loader().file(&path).load().unwrap();
    assert_eq!(example, scene.load());
    let text = std::fs::read_to_string(&path).unwrap();
    for row in scene.load().explain() {
        let name = row.key.rsplit('.').next().unwrap();
        assert!(
            text.contains(&format!("{name}:")) || row.key.starts_with("agent."),
            "{} is not in the example",
            row.key
        );
    }
    // What is written there is really read, not only let through: each setting, changed, changes something.
    let changed = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let scene = Scene::with(&text.replacen(from, to, 1));
        assert_ne!(scene.load(), example, "{from} changes nothing");
    };
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let Some((key, value)) = line.split_once(": ") else { continue };
        let new = match value {
            "true" => "false".to_owned(),
            "false" => "true".to_owned(),
            "[]" => "[a]".to_owned(),
            "full" => "turn".to_owned(),
            "{}" if key.trim() == "triggers" => "{milestone: false}".to_owned(),
            "{}" if key.trim() == "templates" => "{a: {content: b}}".to_owned(),
            "{}" if key.trim() == "models" => "{a: {provider: scripted, model: b}}".to_owned(),
            "{}" => "{a: {role: b}}".to_owned(),
            "null" => continue,
            number if number.parse::<u64>().is_ok() => (number.parse::<u64>().unwrap() + 1).to_string(),
            list if list.starts_with('[') => "[other]".to_owned(),
            _ => "other".to_owned(),
        };
        changed(line, &format!("{key}: {new}"));
    }
}

#[test]
fn a_flag_counts_more_than_a_variable_and_that_more_than_the_file() {
    let file = "workspace: file\nbudget:\n  tokens: 5000\n  last_messages: 7\ndurability: turn\n";
    let scene = Scene::with(file)
        .variable("MILEPOST_WORKSPACE", "variable")
        .variable("MILEPOST_BUDGET_TOKENS", "6000")
        .variable("MILEPOST_POLICY_EXCLUDE_MEMORY_KEYS", "a, b")
        .variable("MILEPOST_DURABILITY", "");
    let settings = scene.loader().set("workspace", "flag").set("policy.everyMessages", "3").load().unwrap();
    assert_eq!(settings.workspace.as_str(), "flag");
    assert_eq!((settings.budget.tokens, settings.budget.last_messages), (6000, 7));
    assert_eq!(settings.policy.every_messages, 3);
    assert_eq!(settings.policy.exclude_keys, ["a", "b"].map(str::to_owned).into());
    let origin = |key: &str| settings.explain().into_iter().find(|row| row.key == key).unwrap().origin.to_string();
    assert_eq!(origin("workspace"), "flag workspace");
    assert_eq!(origin("budget.tokens"), "variable MILEPOST_BUDGET_TOKENS");
    assert_eq!(origin("budget.last_messages"), format!("{}:4:18", scene.file().display()));
    assert_eq!(origin("durability"), format!("{}:5:13", scene.file().display()), "an empty variable counts as not set");
    assert_eq!(origin("redaction.enabled"), "default");
}

#[test]
fn settings_are_taken_in_both_spellings_and_under_the_names_of_other_designs() {
    let ours = Scene::with("policy: {every_messages: 5, checkpoint_on_edge: true, max_checkpoints_per_session: 9}");
    for text in [
        "policy: {everyMessages: 5, checkpointOnEdge: true, maxCheckpointsPerSession: 9}",
        "policy: {every_messages: 5, checkpoint_on_edge_transition: true}\nretention: {max_checkpoints: 9}",
        "checkpoints: {everyMessages: 5, triggers: {edge_transition: true}}\nretention: {maxCheckpoints: 9}",
    ] {
        assert_eq!(Scene::with(text).load().policy, ours.load().policy, "{text}");
    }
    let text = "policy:\n  storageUrl: sqlite:a.db\n  storage_backend: sqlite\n  compress: false\n  compression_threshold_bytes: 5\n  encrypt_checkpoints: true\n  encryption_key_source: keychain\n";
    let scene = Scene::with(text);
    let settings = scene.load();
    assert_eq!(settings.store.expose(), format!("sqlite:{}", scene.dir.path().join("a.db").display()));
    assert_eq!((settings.compression.enabled, settings.compression.threshold_bytes), (false, 5));
    assert_eq!((settings.encryption.enabled, settings.encryption.source), (true, KeySource::Keychain));
    let plan = "agent:\n  checkpoints:\n    enabled: true\n    autoCheckpoint: false\n    maxCheckpointsPerSession: 3\n    pruneAfterDays: 1\n    compressState: false\n";
    let settings = Scene::with(plan).load();
    assert!(!settings.plans.takes(&Trigger::Step) && settings.plans.takes(&Trigger::Error));
    assert_eq!((settings.plans.retention.max_checkpoints, settings.plans.retention.max_age_days), (3, 1));
    assert!(!settings.compression.enabled);
    assert!(settings.policy.takes(&Trigger::Step), "only plans were changed");
}

#[test]
fn an_unknown_key_is_named_with_its_place_and_the_right_one() {
    let wrong = problem("store: 'memory:'\npolicy:\n  every_mesages: 3\n");
    assert_eq!(wrong, "3:3 policy: there is no setting \"every_mesages\"; did you mean policy.every_messages?");
    assert!(problem("polcy: {}\n").ends_with("did you mean policy?"));
    assert!(problem("budget:\n  trash_days: 1\n").contains("did you mean policy.trash_days?"));
    assert!(problem("zzzzzzzzzzzz: 1\n").contains("what is known here: store, "));
    assert!(problem("workspace: &w a\n<<: *w\n").contains("merge keys"));
    let error = Scene::with("a_a_a: 1\nb_b_b: 2\n").loader().load().unwrap_err();
    let Error::Config { place, instead, .. } = &error else { panic!("{error}") };
    assert!(place.ends_with("milepost.yaml:1:1"), "{place}");
    assert!(instead.contains("and 1 more"), "{instead}");
    let flag = Scene::new().loader().set("policy.every_mesages", "1").load().unwrap_err();
    assert!(flag.to_string().contains("did you mean policy.every_messages?"), "{flag}");
    let unknown =
        Scene::new().loader().check_variables(["MILEPOST_WORKSPAC", "PATH", "MILEPOST_STORE", "MILEPOST_KEY"]);
    assert_eq!(unknown.len(), 1);
    assert!(unknown[0].to_string().contains("did you mean MILEPOST_WORKSPACE?"));
}

#[test]
fn wrong_kinds_and_numbers_out_of_range_say_what_is_wanted() {
    assert!(
        problem("policy:\n  enabled: yes\n")
            .starts_with("2:12 policy.enabled: \"yes\" does not fit; write true or false (true)")
    );
    assert!(problem("policy: {enabled: 'true'}").contains("without quotes"));
    assert!(problem("policy: {every_messages: -1}").contains("a whole number from 0 to 4294967295"));
    assert!(problem("policy: {every_messages: 1.5}").contains("a whole number"));
    assert!(problem("policy: {every_messages: 99999999999}").contains("out of range"));
    assert!(problem("retention: {max_checkpoints: 0}").contains("out of range"), "the newest is always kept");
    assert!(problem("policy: [a]").contains("a list stands here"));
    assert!(problem("policy: 3").contains("it is a section, but a text stands here"));
    assert!(problem("budget: {tokens: [1]}").contains("a list stands here"));
    assert!(problem("durability: ful").contains("did you mean full?"));
    assert!(problem("durability: relaxed").contains("full, turn"));
    assert!(problem("workspace: No Spaces").contains("not a workspace name"));
    assert!(problem("redaction: {patterns: ['(']}").contains("not a regular expression: unclosed group"));
    assert!(problem("budget: {tokens: 1000, reserve_tokens: 1000}").contains("nothing is left"));
    assert!(problem("store: sqllite:a.db").contains("did you mean sqlite:?"));
    assert!(problem("store: 'memory:'\nblobs: s3://b/c").contains("beside PostgreSQL"));
    assert!(problem("store: 'memory:'\nstorage_backend: s3").contains("it says s3"));
    assert!(problem("storage_backend: postgres").contains("set store to its URL"));
    assert!(problem("encryption: {key_source: file}").contains("set encryption.key_file"));
    assert!(problem("templates: {a: {file: ../x}}").contains("below the directory"));
    assert!(problem("templates: {a: {file: /etc/passwd}}").contains("below the directory"));
    assert!(problem("templates: {a: {file: b, content: c}}").contains("keep one of them"));
    let told = problem("workspace: \"\\0\"\n");
    assert!(told.contains("NUL"), "{told}");
}

#[test]
fn a_plain_no_is_a_text_where_a_text_is_wanted() {
    assert_eq!(Scene::with("workspace: no").load().workspace.as_str(), "no");
    assert_eq!(Scene::with("workspace: 123").load().workspace.as_str(), "123");
    assert_eq!(Scene::with("\u{feff}workspace: a").load().workspace.as_str(), "a");
    for empty in ["", "# nothing\n", "---\n", "~", "policy:\nbudget: null\n"] {
        let scene = Scene::with(empty);
        assert_eq!(scene.load(), scene.loader().without_file().load().unwrap(), "{empty:?}");
    }
}

#[test]
fn a_setting_that_stands_there_twice_is_refused() {
    let twice = problem("workspace: a\nworkspace: b\n");
    assert!(
        twice.starts_with("2:1") && twice.contains("second time") && twice.contains("milepost.yaml:1:1"),
        "{twice}"
    );
    assert!(problem("policy: {every_messages: 1, everyMessages: 2}").contains("was set before"));
    assert!(problem("policy: {max_checkpoints: 1}\nretention: {max_checkpoints: 2}").contains("was set before"));
}

#[test]
fn check_lists_everything_that_is_wrong() {
    let scene =
        Scene::with("workspac: a\npolicy:\n  every_messages: x\n  enabled: 3\nbudget: 1\ntemplates: {a: {file: ..}}\n");
    let found = config::check(&scene.file());
    assert_eq!(found.len(), 5, "{found:#?}");
    assert!(found.iter().all(|one| one.severity == Severity::Error));
    let missing = config::check(&scene.dir.path().join("none.yaml"));
    assert!(missing[0].to_string().contains("it cannot be read"), "{}", missing[0]);
}

#[test]
fn passwords_are_hidden_wherever_settings_are_shown() {
    let url = "postgres://ada:hunter2@db/milepost?password=hunter2";
    let settings = Scene::with(&format!("store: {url}\n")).load();
    assert_eq!(settings.store.expose(), url);
    let shown = format!("{:?} {:?} {}", settings, settings.explain(), settings.store);
    assert!(!shown.contains("hunter2") && shown.contains("ada:…@db/milepost"), "{shown}");
    let wrong = Scene::with("store: postgrs://ada:hunter2@db/m\n").problems();
    assert!(!format!("{wrong:?}").contains("hunter2"), "{wrong:?}");
    let both = Scene::with("store: postgres://ada:hunter2@db/m\nstorage_backend: s3\n").problems();
    assert!(!format!("{both:?}").contains("hunter2"), "{both:?}");
}

#[test]
fn naming_a_place_for_the_key_or_setting_the_variable_turns_encryption_on() {
    let key = "ab".repeat(32);
    let scene = Scene::with("encryption: {key_file: keys/master}\nsigning: {enabled: true}\n")
        .variable("MILEPOST_MARK_KEY", &key);
    std::fs::create_dir(scene.dir.path().join("keys")).unwrap();
    std::fs::write(scene.dir.path().join("keys/master"), &key).unwrap();
    let settings = scene.load();
    assert!(settings.encryption.enabled);
    let options = settings.options(&|name| scene.variables.get(name).cloned()).unwrap();
    assert!(options.keys.master.is_some() && options.keys.marks.is_some());
    let by_variable = Scene::new().variable("MILEPOST_KEY", &key).load();
    assert!(by_variable.encryption.enabled);
    assert!(!format!("{:?}", by_variable.explain()).contains(&key));
    let off = Scene::with("encryption: {enabled: false}").variable("MILEPOST_KEY", &key);
    let off = off.loader().file("milepost.yaml").load().unwrap();
    assert!(!off.encryption.enabled);
    assert_eq!(off.warnings().len(), 1, "a key that is not used is worth a warning");
    let missing = Scene::with("encryption: {key_source: env_var}").load().options(&|_| None).unwrap_err();
    assert!(missing.to_string().contains("MILEPOST_KEY is not set"), "{missing}");
    let bad =
        Scene::new().variable("MILEPOST_KEY", "s3cret").load().options(&|_| Some("s3cret".to_owned())).unwrap_err();
    assert!(!bad.to_string().contains("s3cret"), "{bad}");
}

#[test]
fn a_policy_is_the_configurations_then_the_agents_then_the_sessions_then_the_runs() {
    let text = "policy: {every_messages: 20, exclude_memory_keys: [a]}\nagents:\n  dev:\n    role: You build.\n    policy: {everySeconds: 60, excludeMemoryKeys: [b]}\n";
    let settings = Scene::with(text).load();
    let session =
        policy_patch(&json!({"checkpointOnNodeStart": false, "smart": {"enabled": true, "changedKeys": 3}})).unwrap();
    let run =
        policy_patch(&json!({"every_messages": 1, "exclude_keys": ["c"], "triggers": {"node_start": true}})).unwrap();
    let policy = settings.policy_for(Work::Chat, Some("dev"), Some(&session), Some(&run));
    assert_eq!((policy.every_messages, policy.every_seconds), (1, 60));
    assert_eq!(policy.exclude_keys, ["a", "b", "c"].map(str::to_owned).into(), "what is left out stays left out");
    assert!(policy.takes(&Trigger::NodeStart) && policy.takes(&Trigger::Smart));
    assert_eq!(policy.smart.changed_keys, 3);
    let plan = settings.policy_for(Work::Plan, None, None, None);
    assert_eq!((plan.every_messages, plan.retention.max_checkpoints), (20, 10));
    let all = Scene::with("retention: {max_checkpoints: 40}").load();
    assert_eq!(all.plans.retention.max_checkpoints, 40, "what is set for all counts more than a default of one kind");
    let off = settings.policy_for(Work::Chat, None, None, Some(&policy_patch(&json!({"enabled": false})).unwrap()));
    assert!(!off.takes(&Trigger::Messages) && off.takes(&Trigger::Manual));
}

#[test]
fn a_patch_is_checked_and_its_stored_form_reads_back() {
    for wrong in [
        json!({"every_mesages": 1}),
        json!({"max_checkpoints": 0}),
        json!({"enabled": "true"}),
        json!([1]),
        json!({"triggers": {"mine": true}}),
    ] {
        assert!(matches!(policy_patch(&wrong), Err(Error::Config { .. })), "{wrong}");
    }
    let patch = PolicyPatch {
        slow_node_ms: Some(5),
        risky_kinds: Some(["x".to_owned()].into()),
        include_files: Some(true),
        clean_only: Some(true),
        prune_every_nodes: Some(0),
        every_iterations: Some(4),
        triggers: [(Trigger::Step, false), (Trigger::Other("mine".into()), true)].into(),
        exclude_keys: ["k".to_owned()].into(),
        ..PolicyPatch::default()
    };
    // A program may have triggers of its own.
    let mut session = milepost::SessionInfo::new(
        "ses_01kdvdna0033tftnnejey8qkx3".parse().unwrap(),
        "tml_01kdvdna0033tftnnejey8qkx3".parse().unwrap(),
        milepost::Timestamp(0),
    );
    session.extra = config::set_session_policy(&patch).0;
    assert_eq!(config::session_policy(&session).unwrap(), Some(patch));
}

#[test]
fn rounds_of_a_loop_count_though_the_default_is_written_beside_them() {
    let settings =
        Scene::with("policy: {checkpoint_on_loop_iteration: false, checkpoint_every_n_iterations: 5}").load();
    assert!(settings.policy.takes(&Trigger::LoopIteration));
    let off = policy_patch(&json!({"checkpoint_on_loop_iteration": false})).unwrap();
    assert!(!settings.policy_for(Work::Chat, None, None, Some(&off)).takes(&Trigger::LoopIteration));
}

#[test]
fn agents_templates_and_readers_of_ones_own_are_taken() {
    let text = "agents:\n  reviewer:\n    role: You review.\n    instructions: [one, two]\n    allowedTools: []\n    tool_instructions: Never write.\nsummaries:\n  readers:\n    reviewer: dev\n    qa: []\ntemplates:\n  brief.md: {content: '# {{title}}'}\n  plan.md: {file: t/plan.md}\n";
    let settings = Scene::with(text).load();
    let kind = &settings.agents["reviewer"];
    assert_eq!((kind.role.as_str(), kind.instructions.len()), ("You review.", 2));
    assert_eq!(kind.allowed_tools, Some(Vec::new()), "an empty list allows none");
    assert!(settings.summaries.readers["reviewer"].contains("dev") && settings.summaries.readers["qa"].is_empty());
    assert_eq!(settings.templates.len(), 2);
    let rows = settings.explain();
    let row = rows.iter().find(|row| row.key == "templates.\"brief.md\".content").unwrap();
    assert!(row.origin.to_string().ends_with("milepost.yaml:12:23"), "{}", row.origin);
}

#[test]
fn a_file_that_came_with_the_directory_is_warned_of_when_it_weakens_protection() {
    let text = "store: postgres://db/m\nredaction: {enabled: false, allow: [a]}\nencryption: {enabled: false}\n";
    let scene = Scene::with(text);
    let settings = scene.load();
    let warned: Vec<_> = settings.warnings().iter().map(|one| one.key.as_str()).collect();
    assert_eq!(warned, ["store", "encryption.enabled", "redaction.enabled", "redaction.allow"]);
    assert!(settings.warnings()[0].instead.contains("MILEPOST_CONFIG"));
    assert!(
        scene.loader().file("milepost.yaml").load().unwrap().warnings().is_empty(),
        "a file that was named is trusted"
    );
    assert!(Scene::with("store: sqlite:a.db\nredaction: {enabled: true}\n").load().warnings().is_empty());
}

#[test]
fn a_session_keeps_its_own_policy() {
    let source = milepost::model::Source::seeded(1, Default::default());
    let mut session = milepost::model::Session::new(source.id(), source.id(), source.now());
    assert_eq!(config::session_policy(&session).unwrap(), None);
    let patch = PolicyPatch { every_messages: Some(3), ..PolicyPatch::default() };
    session.patch(&config::set_session_policy(&patch));
    assert_eq!(config::session_policy(&session).unwrap(), Some(patch));
    session.patch(&config::set_session_policy(&PolicyPatch::default()));
    assert_eq!(config::session_policy(&session).unwrap(), None);
    session.extra.insert("policy".into(), json!({"every_mesages": 3}));
    assert!(config::session_policy(&session).is_err());
}
