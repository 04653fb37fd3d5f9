//! Included by every crate whose integration tests are one binary: a file that no module names would never be run.

#[test]
fn no_test_file_is_forgotten() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let main = std::fs::read_to_string(here.join("main.rs")).unwrap();
    let declares = |text: &str, module: &str| text.contains(&format!("mod {module};"));
    for entry in std::fs::read_dir(&here).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_str().unwrap();
        // A folder holds the files of a module, or what the tests compare with.
        let is_code = path.extension().is_some_and(|end| end == "rs");
        if is_code {
            assert!(module == "main" || declares(&main, module), "{} is not part of main.rs", path.display());
            continue;
        }
        let owner = [here.join(format!("{module}.rs")), path.join("mod.rs")].into_iter().find(|file| file.is_file());
        let owner = owner.map(|file| std::fs::read_to_string(file).unwrap());
        for inner in std::fs::read_dir(&path).into_iter().flatten() {
            let inner = inner.unwrap().path();
            let name = inner.file_stem().unwrap().to_str().unwrap();
            if inner.extension().is_some_and(|end| end == "rs") && name != "mod" {
                let is_known = owner.as_ref().is_some_and(|text| declares(text, name));
                assert!(is_known, "{} is not part of {module}", inner.display());
            }
        }
    }
}
