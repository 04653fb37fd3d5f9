//! Where a configuration is looked for, and files made to do harm.

use milepost::config::{Diagnostic, limits};

use crate::project::config::Scene;

fn problems(text: &str) -> Vec<Diagnostic> {
    Scene::with(text).loader().check()
}

#[test]
fn the_file_is_found_above_the_directory_up_to_the_repository() {
    let scene = Scene::with("workspace: outside");
    let repository = scene.dir.path().join("home/repo");
    let inner = repository.join("a/b");
    std::fs::create_dir_all(&inner).unwrap();
    std::fs::create_dir(repository.join(".git")).unwrap();
    let lookup = |name: &str| scene.variables.get(name).cloned();
    let find = || milepost::config::Loader::new(&inner, lookup).find().unwrap();
    assert_eq!(find(), None);
    std::fs::write(scene.dir.path().join("home/milepost.yaml"), "").unwrap();
    assert_eq!(find(), None, "what lies above the repository is not looked at");
    std::fs::write(repository.join("milepost.yml"), "").unwrap();
    assert_eq!(find(), Some(repository.join("milepost.yml")));
    std::fs::write(inner.join("milepost.yaml"), "").unwrap();
    assert_eq!(find(), Some(inner.join("milepost.yaml")));
    std::fs::write(inner.join("milepost.yml"), "").unwrap();
    let error = milepost::config::Loader::new(&inner, lookup).load().unwrap_err();
    assert!(error.to_string().contains("remove one of the two"), "{error}");
}

#[test]
fn outside_of_home_and_repositories_only_the_directory_itself_is_looked_into() {
    let scene = Scene::with("workspace: planted");
    let below = scene.dir.path().join("elsewhere/deep");
    std::fs::create_dir_all(&below).unwrap();
    let lookup = |name: &str| scene.variables.get(name).cloned();
    assert_eq!(milepost::config::Loader::new(&below, lookup).find().unwrap(), None);
}

#[test]
fn the_users_own_file_comes_last_and_a_named_one_first() {
    let mut scene = Scene::new();
    let own = scene.dir.path().join("home/.config/milepost");
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(own.join("config.yaml"), "workspace: own").unwrap();
    assert_eq!(scene.load().workspace.as_str(), "own");
    std::fs::write(scene.file(), "workspace: here").unwrap();
    assert_eq!(scene.load().workspace.as_str(), "here");
    let named = scene.dir.path().join("other.yaml");
    std::fs::write(&named, "workspace: named").unwrap();
    scene.variables.insert("MILEPOST_CONFIG".into(), named.display().to_string());
    assert_eq!(scene.load().workspace.as_str(), "named");
    assert_eq!(scene.loader().file("milepost.yaml").load().unwrap().workspace.as_str(), "here");
    let missing = scene.loader().file("none.yaml").load().unwrap_err();
    assert!(missing.to_string().contains("none.yaml"), "{missing}");
    assert!(scene.loader().file(".").load().is_err());
}

#[test]
fn huge_files_are_refused_with_the_limit() {
    let found = problems(&"# filler\n".repeat(200_000));
    assert!(found[0].why.contains("MAX_CONFIG_BYTES is 1048576"), "{}", found[0]);
    assert_eq!(limits::MAX_CONFIG_BYTES, 1_048_576);
}

#[test]
fn alias_bombs_are_refused_with_the_limit() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let row = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{row}]\n"));
    }
    assert!(problems(&bomb)[0].why.contains("MAX_CONFIG_VALUES"), "{}", problems(&bomb)[0]);
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(200_000), vec!["*a"; 10_000].join(", "));
    assert!(problems(&long)[0].why.contains("MAX_CONFIG_VALUES"), "copies of long texts count by their length");
    let itself = problems("a: &a [*a]\n");
    assert!(!itself.is_empty());
}

#[test]
fn deep_nesting_is_refused_and_does_not_overflow_the_stack() {
    for open in ["[", "{a: ", "- ", "? "] {
        let deep = open.repeat(limits::MAX_CONFIG_BYTES / open.len() - 10);
        let found = problems(&format!("agents: {deep}"));
        assert!(!found.is_empty(), "{open}");
        let found = problems(&deep);
        assert!(!found.is_empty(), "{open}");
    }
}

#[test]
fn what_is_not_yaml_is_refused_with_its_place() {
    for text in ["a: [1\nb: 2\n", "store: \"memory:\n", "\tstore: x\n", "a: b: c\n"] {
        let found = problems(text);
        let told = found[0].to_string();
        assert!(told.contains("milepost.yaml:") && !told.contains("milepost.yaml:0"), "{told}");
    }
    assert!(problems("a: 1\n---\nb: 2\n").iter().any(|one| one.why.contains("second document")));
    assert!(problems("store: !include x\n")[0].why.contains("tag"));
    assert!(problems("[1, 2]: 3\n")[0].why.contains("a key has to be a text"));
    let scene = Scene::new();
    std::fs::write(scene.file(), b"store: \xff\xfe").unwrap();
    assert!(scene.loader().check()[0].why.contains("not UTF-8"));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(300))]
    #[test]
    fn no_text_makes_reading_panic(text in "[a-c:\\-\\[\\]{}&*!|>'\"#,?~<% \n\t0-9]{0,200}") {
        problems(&text);
    }

    #[test]
    fn no_value_makes_reading_panic(value in "\\PC{0,60}", key in proptest::sample::select(vec!["store", "workspace", "durability", "policy", "budget.tokens", "redaction.patterns", "encryption.key_file"])) {
        let scene = Scene::new();
        scene.loader().set(key, value).check();
    }
}
