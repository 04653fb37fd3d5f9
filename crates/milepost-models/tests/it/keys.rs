//! Where keys come from, and where they never go.

use milepost_models::{Key, ModelConfig, Provider, Timer};

use crate::server::{Server, response};
use crate::support::{KEY, ask, config, model, open, source};

fn error(config: &ModelConfig, key: Option<&str>) -> String {
    let key = key.map(str::to_owned);
    let opened = config.open(&|name| key.clone().filter(|_| name.ends_with("_KEY")), &source(), Timer::none());
    opened.unwrap_err().to_string()
}

#[tokio::test]
async fn a_key_is_never_shown() {
    let key = Key::new(KEY, "X").unwrap();
    assert!(!format!("{key:?} {key:#?}").contains("0123"));
    let body = format!(r#"{{"error":{{"type":"authentication_error","message":"invalid key {KEY}"}}}}"#);
    let server = Server::always(response("401 No", "", &body)).await;
    for provider in [Provider::Anthropic, Provider::OpenAi] {
        let model = model(&server, provider);
        assert!(!format!("{model:?} {model:#?}").contains("0123"), "{model:?}");
        let told = ask(&*model).await.unwrap_err().to_string();
        assert!(told.contains("invalid key [key]") && told.contains("_API_KEY"), "{told}");
    }
}

#[test]
fn a_key_that_cannot_be_one_is_refused_without_being_repeated() {
    for wrong in ["", "  ", "two words", "line\nbreak", "ünïcode", &"x".repeat(5000)] {
        let told = Key::new(wrong, "ANTHROPIC_API_KEY").unwrap_err().to_string();
        assert!(told.starts_with("ANTHROPIC_API_KEY: ") && told.len() < 300, "{told}");
        assert!(wrong.trim().is_empty() || !told.contains(wrong.trim()), "{told}");
    }
    assert!(Key::new(" sk-1\n", "X").is_ok(), "a line break at the end is what files have");
}

#[test]
fn a_missing_key_is_told_before_anything_is_sent() {
    let config = ModelConfig::parse("anthropic/claude-sonnet-5-5").unwrap();
    assert_eq!(
        error(&config, None),
        "ANTHROPIC_API_KEY: anthropic needs a key; set ANTHROPIC_API_KEY, or base_url to a server that needs no key"
    );
    let mut named = ModelConfig::parse("openai/llama").unwrap();
    named.key_variable = Some("MY_OWN".into());
    named.base_url = Some("http://127.0.0.1:1".into());
    assert_eq!(error(&named, None), "MY_OWN: it holds no key; set it, or leave key_variable out");
}

#[tokio::test]
async fn a_server_of_ones_own_needs_no_key() {
    let server = Server::always(response("500 No", "", "")).await;
    let config = config(&server, Provider::OpenAi);
    let model = config.open(&|_| None, &source(), Timer::none()).unwrap();
    ask(&*model).await.unwrap_err();
    assert_eq!(server.seen()[0].header("authorization"), None);
}

#[tokio::test]
async fn the_address_comes_from_the_settings_or_the_environment() {
    let server = Server::always(response("500 No", "", "")).await;
    let (url, mut config) = (format!("{}/gateway/v1/", server.url), ModelConfig::new(Provider::Anthropic, "m"));
    let find = |name: &str| (name == "ANTHROPIC_BASE_URL").then(|| url.clone());
    ask(&*config.open(&find, &source(), Timer::none()).unwrap()).await.unwrap_err();
    config.base_url = Some(format!("{}/own", server.url));
    config.headers.insert("x-team".into(), "blue".into());
    ask(&*config.open(&find, &source(), Timer::none()).unwrap()).await.unwrap_err();
    let seen = server.seen();
    assert!(seen[0].head.starts_with("POST /gateway/v1/messages "), "{}", seen[0].head);
    assert!(seen[1].head.starts_with("POST /own/v1/messages "), "{}", seen[1].head);
    assert_eq!(seen[1].header("x-team"), Some("blue"));
}

#[test]
fn an_address_that_would_leak_something_is_refused() {
    let with = |url: &str| ModelConfig { base_url: Some(url.into()), ..ModelConfig::new(Provider::OpenAi, "m") };
    assert!(error(&with("http://models.example.com/v1"), Some(KEY)).contains("the key would travel unencrypted"));
    for wrong in
        ["not a url", "ftp://example.com", "https://user:secret@example.com", "https://example.com/?key=secret"]
    {
        let told = error(&with(wrong), Some(KEY));
        assert!(told.starts_with("base_url: ") && !told.contains("secret"), "{told}");
    }
    let mut headers = with("https://example.com");
    headers.headers.insert("bad name".into(), "x".into());
    assert_eq!(error(&headers, Some(KEY)), "headers.bad name: it is not a header; write a name and a text");
    assert!(ModelConfig::parse("claude").is_err() && ModelConfig::parse("anthropic/ ").is_err());
    open(&ModelConfig { allow_http: true, ..with("http://models.example.com/v1") });
}
