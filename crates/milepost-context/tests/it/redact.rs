use std::path::Path;
use std::sync::LazyLock;

use milepost_context::redact::{Found, Redactor, Rules, VaultKey, restore, restore_message, restore_text};
use milepost_model::{Block, Channel, Message, Policy, Role, State};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn corpus(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// Fills `{alnum:36}` and the like with letters that depend on the seed alone.
fn filled(template: &str, mut seed: u64) -> String {
    let mut draw = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 33) as usize
    };
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        let Some((kind, length, tail)) = after.split_once('}').and_then(|(spec, tail)| {
            let (kind, length) = spec.split_once(':')?;
            Some((kind, length.parse::<usize>().ok()?, tail))
        }) else {
            out.push('{');
            rest = after;
            continue;
        };
        let letters: &[u8] = match kind {
            "alnum" => b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
            "hex" => b"0123456789abcdef",
            "upper" => b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
            "base64" => b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/",
            "url" => b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_",
            "digits" => b"1234567890",
            other => panic!("{other}"),
        };
        out.extend((0..length).map(|_| char::from(letters[draw() % letters.len()])));
        rest = tail;
    }
    out + rest
}

/// The kind, the text, and the secret in it.
fn examples(seed: u64) -> Vec<(String, String, String)> {
    let lines = corpus("secrets.txt");
    let lines = lines.lines().enumerate().map(|(at, line)| {
        let (kind, template) = line.split_once('\t').unwrap();
        let template = template.replace("\\\\", "\u{1}").replace("\\n", "\n").replace('\u{1}', "\\");
        let text = filled(&template, 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed * 1000 + at as u64 + 1));
        let (_, after) = text.split_once('«').unwrap();
        let (secret, _) = after.split_once('»').unwrap();
        (kind.to_owned(), text.replace(['«', '»'], ""), secret.to_owned())
    });
    lines.collect()
}

static REDACTOR: LazyLock<Redactor> = LazyLock::new(|| Rules::from_policy(&Policy::default()).build());
static WITH_VAULT: LazyLock<Redactor> = LazyLock::new(|| Rules::new().vault(VaultKey::new([3; 32])).build());

fn redactor() -> &'static Redactor {
    &REDACTOR
}

fn with_vault() -> &'static Redactor {
    &WITH_VAULT
}

fn kinds(found: &[Found]) -> Vec<&str> {
    found.iter().map(|f| f.kind.as_str()).collect()
}

#[test]
fn every_listed_secret_is_found_whole_and_nothing_else() {
    let redactor = Rules::new().build();
    let mut missed = Vec::new();
    for seed in 1..=20 {
        for (kind, text, secret) in examples(seed) {
            let expected = text.replace(&secret, &format!("[redacted:{kind}]"));
            let got = redactor.text(&text).map(|(clean, _)| clean).unwrap_or_else(|| text.clone());
            if got != expected {
                missed.push(format!("{kind}: {text}\n  gave {got}"));
            }
        }
    }
    assert!(
        missed.is_empty(),
        "{} of {}:\n{}",
        missed.len(),
        20 * examples(1).len(),
        missed[..missed.len().min(12)].join("\n")
    );
}

#[test]
fn texts_without_a_secret_stay_as_they_are() {
    let redactor = redactor();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/none");
    let mut files = 0;
    for file in std::fs::read_dir(directory).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        files += 1;
        for line in text.lines() {
            let found = redactor.text(line).map(|(clean, _)| clean);
            assert_eq!(found, None, "{}: {line}", path.display());
        }
        assert!(redactor.text(&text).is_none(), "{}", path.display());
    }
    assert_eq!(files, 5);
}

#[test]
fn every_listed_value_of_an_object_goes_wherever_the_object_is() {
    let redactor = Rules::new().build();
    for seed in 1..=20 {
        for (at, line) in corpus("objects.txt").lines().enumerate() {
            let (key, template) = line.split_once('\t').unwrap();
            let secret = filled(template, 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed * 1000 + at as u64 + 1));
            let object = json!({"env": {key: secret, "LANG": "C.UTF-8"}});
            let clean = json!({"env": {key: "[redacted:key]", "LANG": "C.UTF-8"}});
            let mut value = object.clone();
            redactor.value(&mut value);
            assert_eq!(value, clean, "{key}: {secret}");
            assert!(redactor.value(&mut value).is_empty(), "{key}");
            let blocks = |object: &Value| {
                vec![Block::tool_call("c1", "sh", object.clone()), Block::tool_result("c1", object.clone())]
            };
            let mut message = Message::blocks(Role::Assistant, blocks(&object));
            redactor.message(&mut message);
            assert_eq!(message, Message::blocks(Role::Assistant, blocks(&clean)), "{key}");
        }
    }
}

#[test]
fn objects_without_a_secret_stay_as_they_are() {
    for line in corpus("no_objects.txt").lines() {
        let before: Value = serde_json::from_str(line).unwrap();
        let mut value = before.clone();
        redactor().value(&mut value);
        assert_eq!(value, before);
        let mut message = Message::blocks(Role::Assistant, vec![Block::from(before.clone())]);
        let whole = message.clone();
        redactor().message(&mut message);
        assert_eq!(message, whole);
    }
}

#[test]
fn a_value_whose_name_stands_beside_it_goes() {
    let secret = filled("{alnum:32}", 5);
    let mut value = json!([{"name": "GITHUB_TOKEN", "value": secret}, {"key": "DB_PASSWORD", "value": "correcthorse"},
        {"name": "LANG", "value": "C.UTF-8"}, {"tokens_of": "x", "apiTokens1": [secret, "b"]}]);
    redactor().value(&mut value);
    assert_eq!(
        value,
        json!([{"name": "GITHUB_TOKEN", "value": "[redacted:key]"}, {"key": "DB_PASSWORD", "value": "[redacted:key]"},
            {"name": "LANG", "value": "C.UTF-8"}, {"tokens_of": "x", "apiTokens1": "[redacted:key]"}])
    );
}

#[test]
fn random_data_is_no_secret() {
    let redactor = redactor();
    for (template, lines) in
        [("{base64:76}", 14_000), ("{hex:64}  file", 14_000), ("\"{alnum:22}\": {digits:12},", 20_000)]
    {
        let text: String = (0..lines).map(|line| filled(template, line + 1) + "\n").collect();
        let found = redactor.text(&text).map(|(_, found)| found).unwrap_or_default();
        assert!(found.len() <= 1, "{template}: {found:?}");
    }
}

#[test]
fn values_under_named_keys_go_whole_at_any_depth() {
    let redactor = Rules::from_policy(&Policy::default()).keys(["ssn"]).build();
    let mut value = json!({
        "memory": {"API-Key": "abc", "apiKey": ["a", "b"], "credentials": {"user": "u", "pass": 1}, "S.S.N": 123},
        "list": [{"access_token": "t"}, {"Password": ""}, {"secret": null}, {"password": true}],
        "schema": {"properties": {"password": {"type": "string"}}},
        "DB_PASSWORD": "correcthorse",
        "tokens": 12,
    });
    let found = redactor.value(&mut value);
    assert_eq!(
        value,
        json!({
            "memory": {"API-Key": "[redacted:key]", "apiKey": "[redacted:key]", "credentials": "[redacted:key]", "S.S.N": "[redacted:key]"},
            "list": [{"access_token": "[redacted:key]"}, {"Password": ""}, {"secret": null}, {"password": true}],
            "schema": {"properties": {"password": {"type": "string"}}},
            "DB_PASSWORD": "[redacted:key]",
            "tokens": 12,
        })
    );
    let mut places: Vec<&str> = found.iter().map(|f| f.place.as_str()).collect();
    places.sort_unstable();
    assert_eq!(
        places,
        [
            "/DB_PASSWORD",
            "/list/0/access_token",
            "/memory/API-Key",
            "/memory/S.S.N",
            "/memory/apiKey",
            "/memory/credentials"
        ]
    );
    assert_eq!(redactor.value(&mut value).len(), 0);
    let (text, _) = redactor.text("the form has \"ssn\": \"123-45-6789\" and ssn=987654321").unwrap();
    assert_eq!(text, "the form has \"ssn\": \"[redacted:named]\" and ssn=[redacted:named]");
}

#[test]
fn every_text_of_a_message_is_looked_at() {
    let secret = filled("ghp_{alnum:36}", 5);
    let mut message = Message::blocks(
        Role::Assistant,
        vec![
            Block::text(format!("a {secret}")),
            Block::Thinking { text: format!("b {secret}"), extra: Map::from_iter([("signature".into(), json!("s"))]) },
            Block::tool_call(
                "c1",
                "sh",
                json!({"cmd": [{"x": format!("c {secret}")}], "password": "p", secret.as_str(): 1}),
            ),
            Block::tool_result("c1", json!([{"type": "text", "text": secret}])),
            Block::Unknown(json!({"type": "odd", "deep": {"er": secret}})),
            Block::Image { source: json!({"url": format!("https://u:{}@h/x.png", "hunter22")}), extra: Map::new() },
        ],
    );
    message.extra.insert("toolCalls".into(), json!([{"args": secret}]));
    message.role = Role::Other(secret.clone());
    message.channel = Channel::new(secret.clone()).unwrap();
    let found = redactor().message(&mut message);
    let json = serde_json::to_string(&message).unwrap();
    assert!(!json.contains(&secret) && !json.contains("hunter22") && !json.contains("signature"), "{json}");
    assert_eq!(found.len(), 11);
    assert!(found.iter().any(|f| f.place == "/content/2/input/cmd/0/x"));
    let again = message.clone();
    assert_eq!(redactor().message(&mut message).len(), 0);
    assert_eq!(message, again);
}

#[test]
fn a_state_is_redacted() {
    let mut state = State::new();
    state.section_mut("environment")["OPENAI_API_KEY"] = json!(filled("sk-proj-{url:60}", 9));
    state.section_mut("memory")["note"] = json!("nothing");
    let found = redactor().state(&mut state);
    assert_eq!(kinds(&found), ["key"]);
    assert_eq!(state.pointer("/environment/OPENAI_API_KEY"), Some(&json!("[redacted:key]")));
    assert_eq!(state.pointer("/memory/note"), Some(&json!("nothing")));
}

#[test]
fn what_was_taken_out_can_be_put_back() {
    let redactor = with_vault();
    let token = filled("ghp_{alnum:36}", 6);
    let before = json!({
        "credentials": {"a": [1, null]}, "password": "plain", "text": format!("x {token} y {token}"),
        token.as_str(): "as a key", "n": {"secret": 12},
    });
    let mut value = before.clone();
    let found = redactor.value(&mut value);
    let lookup = |_: &str, id: &str| found.iter().find(|f| f.id.as_deref() == Some(id)).map(|f| f.secret().to_owned());
    assert!(!value.to_string().contains(&token));
    let text = value["text"].as_str().unwrap();
    let (first, second) = text.strip_prefix("x ").unwrap().split_once(" y ").unwrap();
    assert_eq!(first, second, "one secret has one token");
    let mut unknown = value.clone();
    restore(&mut unknown, |_, _| None);
    assert_eq!(unknown, value);
    restore(&mut value, lookup);
    assert_eq!(value, before);

    let before = Message::blocks(
        Role::User,
        vec![Block::text(token.clone()), Block::tool_call("c", "n", json!({"password": "p"}))],
    );
    let mut message = before.clone();
    let found = redactor.message(&mut message);
    assert_ne!(message, before);
    restore_message(&mut message, |_, id| {
        found.iter().find(|f| f.id.as_deref() == Some(id)).map(|f| f.secret().to_owned())
    });
    assert_eq!(message, before);
    assert_eq!(restore_text("a [redacted:jwt:0123456789ab]", |kind, _| Some(format!("<{kind}>"))), "a <jwt>");
}

#[test]
fn a_found_secret_does_not_print() {
    let (_, found) = with_vault().text("redis://:topsecret1@h").unwrap();
    assert!(!format!("{found:?}").contains("topsecret1"));
    assert_eq!(found[0].secret(), "topsecret1");
    assert_eq!(format!("{:?}", VaultKey::new([1; 32])), "VaultKey");
}

#[test]
fn patterns_and_exceptions_of_your_own_count() {
    let rules = Rules::none().pattern("badge", r"BADGE-(?<secret>\d{4})").unwrap().allow("^0000$").unwrap();
    let redactor = rules.build();
    let (text, found) = redactor.text("BADGE-1234 BADGE-0000").unwrap();
    assert_eq!(text, "BADGE-[redacted:badge] BADGE-0000");
    assert_eq!(kinds(&found), ["badge"]);
    assert!(redactor.text(&filled("ghp_{alnum:36}", 1)).is_none());
    assert!(Rules::none().pattern("Bad Kind", "x").is_err());
    assert!(Rules::none().pattern("ok", "(").unwrap_err().to_string().contains("mend it"));
    assert!(Rules::none().pattern("ok", "x*").is_err());
    assert!(Rules::none().pattern("ok", &"x".repeat(5000)).is_err());
    assert!(Rules::none().pattern("ok", r"(\w{1000}){1000}").is_err());
}

#[test]
fn a_pattern_that_matches_its_own_token_is_still_applied_once() {
    let redactor = Rules::none().pattern("word", "[a-z]+").unwrap().build();
    let (once, _) = redactor.text("secret words").unwrap();
    assert_eq!(redactor.text(&once).map(|(text, _)| text), None, "{once}");
}

#[test]
fn secrets_that_stand_side_by_side_are_all_found() {
    let text = filled(&"sk-or-v1-{hex:64}".repeat(50), 11) + &filled("ghs_{alnum:36}", 12);
    let (clean, found) = redactor().text(&text).unwrap();
    assert_eq!(found.len(), 51, "{clean}");
}

#[test]
fn hostile_texts_take_time_in_proportion() {
    let redactor = redactor();
    for unit in [
        "token=",
        "token:\"",
        "token:\\\"",
        "password",
        "-----BEGIN PRIVATE KEY-----",
        "eyJ",
        "eyJaaaaaaaaa.",
        "://a:",
        "sk-",
        "secret='",
        ":AA",
        "1//0",
        "[redacted:",
        "curl ",
        "curl -u ",
        "mysql -",
        "cookie:a=b;",
        "cookie:a=bbbbbbbbb; ",
        "--PASSWORD=",
        "password=a&",
        "password=&a&",
        "> -----BEGIN PRIVATE KEY-----\n> ",
    ] {
        let text = unit.repeat(200_000 / unit.len());
        let _ = redactor.text(&text);
    }
}

#[test]
fn what_lies_deep_is_looked_at_and_otherwise_stays() {
    // As deep as a state may be.
    let deep = |inner: Value| (0..milepost_model::delta::MAX_DEPTH).fold(inner, |value, _| json!([value]));
    let mut value = deep(json!(["plain", 1]));
    assert!(redactor().value(&mut value).is_empty());
    assert_eq!(value, deep(json!(["plain", 1])));
    let secret = filled("ghp_{alnum:36}", 3);
    let mut value = deep(json!([secret, 1]));
    assert_eq!(redactor().value(&mut value).len(), 1);
    assert_eq!(value, deep(json!(["[redacted:github-token]", 1])));
}

fn piece() -> impl Strategy<Value = String> {
    let examples: Vec<String> = examples(77).into_iter().map(|(_, text, _)| text).collect();
    prop_oneof![
        4 => prop::sample::select(examples),
        2 => "[ -~]{0,12}",
        1 => prop::sample::select(vec!["password=", "\"token\": \"", "\"", "'", "://u:", "@h", "[redacted:key]", "Bearer ", "é", "\n", "secret: ", "="].into_iter().map(str::to_owned).collect::<Vec<_>>()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn redacting_twice_is_redacting_once(pieces in prop::collection::vec(piece(), 0..6), vault in any::<bool>()) {
        let redactor = if vault { with_vault() } else { redactor() };
        let text = pieces.concat();
        let once = redactor.text(&text).map_or(text, |(clean, _)| clean);
        let twice = redactor.text(&once).map(|(clean, _)| clean);
        prop_assert_eq!(twice, None, "{}", once);
    }

    #[test]
    fn what_is_found_is_gone_and_comes_back(pieces in prop::collection::vec(piece(), 0..6)) {
        let redactor = with_vault();
        let text = pieces.concat();
        let Some((clean, found)) = redactor.text(&text) else { return Ok(()) };
        let back = restore_text(&clean, |_, id| found.iter().find(|f| f.id.as_deref() == Some(id)).map(|f| f.secret().to_owned()));
        prop_assert_eq!(back, text);
    }

    #[test]
    fn json_stays_json(pieces in prop::collection::vec(piece(), 1..5), key in piece()) {
        let mut value = json!({"a": [pieces.concat()], key.as_str(): {"password": pieces.first()}});
        redactor().value(&mut value);
        let text = value.to_string();
        prop_assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
