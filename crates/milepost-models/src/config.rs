//! From settings and environment to a model.

use std::path::PathBuf;
use std::sync::Arc;

use milepost_model::Source;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::Model;
use crate::anthropic::{Anthropic, VERSION};
use crate::error::Error;
use crate::http::{Transport, client, is_loopback};
use crate::key::Key;
use crate::limits::Timeouts;
use crate::openai::OpenAi;
use crate::prices::Prices;
use crate::scripted::Scripted;
use crate::timer::Timer;

/// Who is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// The Messages API.
    Anthropic,
    /// The Chat Completions API, of OpenAI or of a server that speaks it.
    OpenAi,
    /// A script, without a network.
    Scripted,
}

impl Provider {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Provider::Anthropic => "anthropic",
            Provider::OpenAi => "openai",
            Provider::Scripted => "scripted",
        }
    }

    /// Its usual address, and the variables that hold its key and its address.
    fn usual(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Provider::Anthropic => ("https://api.anthropic.com", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
            Provider::OpenAi => ("https://api.openai.com/v1", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
            Provider::Scripted => ("", "", ""),
        }
    }
}

/// A model as settings name it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Who is asked.
    pub provider: Provider,
    /// The provider's name of the model; for `scripted`, the script's path.
    pub model: String,
    /// Where the API is. The provider's own when neither this nor its variable (`ANTHROPIC_BASE_URL`,
    /// `OPENAI_BASE_URL`) says otherwise.
    #[serde(default)]
    pub base_url: Option<String>,
    /// The variable that holds the key (`ANTHROPIC_API_KEY`, `OPENAI_API_KEY`). The key itself is never in settings.
    #[serde(default)]
    pub key_variable: Option<String>,
    /// Whether a key may travel unencrypted to another machine.
    #[serde(default)]
    pub allow_http: bool,
    /// How long a call may take.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Further headers of every request. Not for keys: settings are shown.
    #[serde(default)]
    pub headers: Map<String, Value>,
    /// Prices that stand over the built-in ones, as `prices.json` has them.
    #[serde(default)]
    pub prices: Option<Value>,
}

impl ModelConfig {
    /// A model with the usual settings.
    pub fn new(provider: Provider, model: impl Into<String>) -> Self {
        Self {
            provider,
            model: model.into(),
            base_url: None,
            key_variable: None,
            allow_http: false,
            timeouts: Timeouts::default(),
            headers: Map::new(),
            prices: None,
        }
    }

    /// Reads `PROVIDER/MODEL`, such as `anthropic/claude-sonnet-5-5` or `scripted/demo.yaml`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let provider = |word: &str| {
            [Provider::Anthropic, Provider::OpenAi, Provider::Scripted].into_iter().find(|own| own.as_str() == word)
        };
        let parts = text.split_once('/').and_then(|(word, model)| Some((provider(word)?, model)));
        match parts.filter(|(_, model)| !model.trim().is_empty()) {
            Some((provider, model)) => Ok(Self::new(provider, model.trim())),
            None => {
                let text: String = text.chars().take(80).collect();
                let why = "it does not name a provider and a model";
                Err(Error::config(
                    format!("model {text:?}"),
                    why,
                    "write anthropic/MODEL, openai/MODEL or scripted/FILE",
                ))
            }
        }
    }

    /// Makes the model. `variable` looks an environment variable up; relative paths begin at the current directory.
    pub fn open(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
        source: &Source,
        timer: Timer,
    ) -> Result<Arc<dyn Model>, Error> {
        if self.provider == Provider::Scripted {
            return Ok(Arc::new(Scripted::read(&PathBuf::from(&self.model), timer)?.with_source(source.clone())));
        }
        let prices = Prices::built_in()?;
        let prices = match &self.prices {
            Some(own) => prices.overlay(Prices::from_value("prices", own)?),
            None => prices,
        };
        let transport = self.transport(variable, source)?;
        Ok(match self.provider {
            Provider::Anthropic => Arc::new(Anthropic { transport, prices }),
            _ => {
                let is_own = transport.url.host_str() == Some("api.openai.com");
                let limit_field = if is_own { "max_completion_tokens" } else { "max_tokens" };
                Arc::new(OpenAi { transport, prices, limit_field })
            }
        })
    }

    fn transport(&self, variable: &dyn Fn(&str) -> Option<String>, source: &Source) -> Result<Transport, Error> {
        let (usual_url, usual_key, url_variable) = self.provider.usual();
        let set = |name: &str| variable(name).filter(|text| !text.trim().is_empty());
        let (place, base) = match (&self.base_url, set(url_variable)) {
            (Some(url), _) => ("base_url", url.clone()),
            (None, Some(url)) => (url_variable, url),
            (None, None) => ("base_url", usual_url.to_owned()),
        };
        let base = base_url(place, &base)?;
        let key_variable = self.key_variable.clone().unwrap_or_else(|| usual_key.to_owned());
        let key = set(&key_variable).map(|key| Key::new(key, &key_variable)).transpose()?;
        if key.is_none() && self.key_variable.is_some() {
            return Err(Error::config(&key_variable, "it holds no key", "set it, or leave key_variable out"));
        }
        if key.is_none() && base.as_str().starts_with(usual_url) {
            let instead = format!("set {key_variable}, or base_url to a server that needs no key");
            return Err(Error::config(&key_variable, format!("{} needs a key", self.provider.as_str()), instead));
        }
        if key.is_some() && base.scheme() == "http" && !self.allow_http && !is_loopback(&base) {
            let why = "the key would travel unencrypted";
            return Err(Error::config(place, why, "use https://, or set allow_http: true when the network is trusted"));
        }
        let path = if self.provider == Provider::Anthropic { "v1/messages" } else { "chat/completions" };
        let path = match base.path().trim_end_matches('/') {
            own if own.ends_with("/v1") => format!("{own}/{}", path.trim_start_matches("v1/")),
            own => format!("{own}/{path}"),
        };
        let mut url = base.clone();
        url.set_path(&path);
        let headers = self.headers(key.as_ref())?;
        let client = client(&base, self.timeouts)?;
        let (model, timeouts) = (self.model.clone(), self.timeouts);
        Ok(Transport { client, url, model, headers, key, key_variable, timeouts, source: source.clone() })
    }

    fn headers(&self, key: Option<&Key>) -> Result<HeaderMap, Error> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let wrong = || {
                let name: String = name.chars().take(80).collect();
                Error::config(format!("headers.{name}"), "it is not a header", "write a name and a text")
            };
            let value = value.as_str().ok_or_else(wrong)?;
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
            headers.insert(name, HeaderValue::from_str(value).map_err(|_| wrong())?);
        }
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        headers.insert("accept", HeaderValue::from_static("text/event-stream, application/json"));
        headers.insert("user-agent", HeaderValue::from_static(concat!("milepost/", env!("CARGO_PKG_VERSION"))));
        if self.provider == Provider::Anthropic {
            headers.entry("anthropic-version").or_insert(HeaderValue::from_static(VERSION));
        }
        if let Some(key) = key {
            let (name, text) = match self.provider {
                Provider::Anthropic => ("x-api-key", zeroize::Zeroizing::new(key.expose().to_owned())),
                _ => ("authorization", zeroize::Zeroizing::new(format!("Bearer {}", key.expose()))),
            };
            let unfit = |_| Error::config("the key", "it cannot stand in a header", "set it to the key alone");
            let mut value = HeaderValue::from_str(&text).map_err(unfit)?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(headers)
    }
}

fn base_url(place: &str, text: &str) -> Result<reqwest::Url, Error> {
    // The text is not repeated: it may hold a password.
    let wrong = |why: &str| Error::config(place, why, "write it like https://api.example.com/v1");
    let url = reqwest::Url::parse(text.trim()).map_err(|error| wrong(&format!("it is not a URL ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong("it is not an address of the web"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("it holds a user name or a password"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("it has a query or a fragment"));
    }
    Ok(url)
}
