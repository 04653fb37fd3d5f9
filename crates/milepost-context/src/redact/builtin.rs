//! The well-known forms: secrets that show what they are by how they begin.

/// A form that begins with a literal.
pub(super) struct Form {
    pub(super) kind: &'static str,
    /// How it begins: any of these, in this case.
    pub(super) literals: &'static [&'static str],
    /// The whole, from the literal on. Group 1, when there is one, is the secret.
    pub(super) pattern: &'static str,
    /// What may not stand before it.
    pub(super) before: Before,
}

/// What may stand before a literal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// Anything.
    Any,
    /// No letter, digit or underscore.
    Boundary,
    /// So many digits, which belong to the secret.
    Digits { least: usize, most: usize },
    /// A letter: the end of a URL's scheme.
    Letter,
    /// What separates the fields of a URL's query.
    Query,
}

const fn form(kind: &'static str, literals: &'static [&'static str], pattern: &'static str) -> Form {
    Form { kind, literals, pattern, before: Before::Boundary }
}

const fn after(before: Before, form: Form) -> Form {
    Form { before, ..form }
}

pub(super) const FORMS: &[Form] = &[
    form("aws-access-key", &["AKIA", "ASIA", "ABIA", "ACCA"], r"^[A-Z]{4}[A-Z0-9]{16}\b"),
    form("google-api-key", &["AIza"], r"^AIza[0-9A-Za-z_-]{35}"),
    form("google-oauth", &["ya29."], r"^ya29\.[0-9A-Za-z._-]{20,300}"),
    form("google-oauth", &["GOCSPX-"], r"^GOCSPX-[0-9A-Za-z_-]{20,64}"),
    form("google-oauth", &["1//0"], r"^1//0[0-9A-Za-z_-]{30,300}"),
    after(
        Before::Any,
        form("azure-key", &["AccountKey=", "SharedAccessKey="], r"^[A-Za-z]{7,12}Key=([0-9A-Za-z+/]{43,86}={1,2})"),
    ),
    after(Before::Query, form("azure-sas", &["sig="], r"^sig=([0-9A-Za-z%+/]{43,200}(?:%3[Dd]|=)?)")),
    form("github-token", &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"], r"^gh[a-z]_[0-9A-Za-z]{36,255}"),
    form("github-token", &["github_pat_"], r"^github_pat_[0-9A-Za-z_]{22,255}"),
    form(
        "gitlab-token",
        &["glpat-", "gldt-", "glrt-", "glptt-", "glcbt-", "glsoat-", "glft-", "glagent-"],
        r"^gl[a-z]{2,6}-[0-9A-Za-z_.-]{20,300}",
    ),
    form(
        "slack-token",
        &["xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xoxo-", "xoxe-", "xoxe.xox", "xapp-"],
        r"^x(?:ox[a-z]|app)[.-][0-9A-Za-z.-]{10,400}",
    ),
    after(
        Before::Any,
        form(
            "slack-webhook",
            &["hooks.slack.com/"],
            r"^hooks\.slack\.com/(?:services|workflows|triggers)/([0-9A-Za-z/]{20,200})",
        ),
    ),
    form("stripe-key", &["sk_live_", "sk_test_", "rk_live_", "rk_test_"], r"^[sr]k_(?:live|test)_[0-9A-Za-z]{16,255}"),
    form("stripe-key", &["whsec_"], r"^whsec_[0-9A-Za-z+/]{24,128}=*"),
    form("anthropic-key", &["sk-ant-"], r"^sk-ant-[0-9A-Za-z_-]{20,256}"),
    form(
        "openai-key",
        &["sk-proj-", "sk-svcacct-", "sk-admin-", "sk-None-"],
        r"^sk-(?:proj|svcacct|admin|None)-[0-9A-Za-z_-]{20,256}",
    ),
    form("openrouter-key", &["sk-or-"], r"^sk-or-v1-[0-9a-f]{64}"),
    form("openai-key", &["sk-"], r"^sk-[0-9A-Za-z]{32,128}\b"),
    form("npm-token", &["npm_"], r"^npm_[0-9A-Za-z]{36,64}"),
    form("pypi-token", &["pypi-"], r"^pypi-[0-9A-Za-z_-]{50,300}"),
    form("crates-token", &["cio"], r"^cio[0-9A-Za-z]{32}\b"),
    form("hugging-face-token", &["hf_"], r"^hf_[0-9A-Za-z]{30,64}\b"),
    form("groq-key", &["gsk_"], r"^gsk_[0-9A-Za-z]{40,64}\b"),
    form("xai-key", &["xai-"], r"^xai-[0-9A-Za-z]{60,100}\b"),
    form("perplexity-key", &["pplx-"], r"^pplx-[0-9A-Za-z]{40,64}\b"),
    form("replicate-token", &["r8_"], r"^r8_[0-9A-Za-z]{37}\b"),
    form("digitalocean-token", &["dop_v1_", "doo_v1_", "dor_v1_"], r"^do[opr]_v1_[0-9a-f]{64}\b"),
    form("databricks-token", &["dapi"], r"^dapi[0-9a-f]{32}\b"),
    form("linear-key", &["lin_api_"], r"^lin_api_[0-9A-Za-z]{32,64}"),
    form("shopify-token", &["shpat_", "shpss_", "shpca_", "shppa_"], r"^shp[a-z]{2}_[0-9a-fA-F]{32}\b"),
    form("vault-token", &["hvs.", "hvb."], r"^hv[sb]\.[0-9A-Za-z_-]{24,300}"),
    form("docker-token", &["dckr_pat_"], r"^dckr_pat_[0-9A-Za-z_-]{20,64}"),
    form("notion-token", &["ntn_"], r"^ntn_[0-9A-Za-z]{40,64}\b"),
    form(
        "twilio-key",
        &[
            "SK0", "SK1", "SK2", "SK3", "SK4", "SK5", "SK6", "SK7", "SK8", "SK9", "SKa", "SKb", "SKc", "SKd", "SKe",
            "SKf",
        ],
        r"^SK[0-9a-f]{32}\b",
    ),
    form("sendgrid-key", &["SG."], r"^SG\.[0-9A-Za-z_-]{16,32}\.[0-9A-Za-z_-]{32,64}"),
    form("mailgun-key", &["key-"], r"^key-[0-9a-f]{32}\b"),
    after(Before::Digits { least: 8, most: 10 }, form("telegram-token", &[":AA"], r"^:AA[0-9A-Za-z_-]{33}\b")),
    form("age-key", &["AGE-SECRET-KEY-1"], r"^AGE-SECRET-KEY-1[0-9A-Z]{58}"),
    form("jwt", &["eyJ"], r"^eyJ[0-9A-Za-z_-]{8,}\.eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]*"),
    after(
        Before::Any,
        form(
            "private-key",
            &["-----BEGIN"],
            // Each line may be quoted, be a comment, or follow its number.
            concat!(
                r"^-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----",
                r"(?:(?:[0-9A-Za-z+/=\s\\:,.'>|#*→]|-[0-9A-Za-z])*-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----",
                r"|(?:(?:\\[nr]|[\s>|#*])*[0-9A-Za-z+/=]{16,})+)",
            ),
        ),
    ),
    after(
        Before::Letter,
        form("url-password", &["://"], r#"^://[^\s:/?#@'"<>`\\]{0,128}:([^\s/@'"<>`\\]{1,256})@[0-9A-Za-z\[_.-]"#),
    ),
];

/// Forms that begin with a word in any case: headers, and commands that are given a password.
pub(super) const HEADERS: &[Form] = &[
    form(
        "authorization",
        &["authorization"],
        r#"(?i)^authorization\\?["']?\s{0,4}[:=]\s{0,4}\\?["']?(?:(?:bearer|basic|token|digest|apikey|negotiate|aws4-hmac-sha256)\s{1,4})([0-9A-Za-z._~+/=-]{8,})"#,
    ),
    // A key alone, as some services want it; in quotes, since a sentence may go on behind the word.
    form("authorization", &["authorization"], r#"(?i)^authorization:[\t ]{0,4}([0-9A-Za-z._~+/=-]{20,})\\?["']"#),
    form("authorization", &["bearer"], r#"(?i)^bearer\s{1,4}([0-9A-Za-z._~+/-]{20,}=*)"#),
    // From the first value that may be a session's on: the cookies before it say little, those after it may say more.
    form(
        "cookie",
        &["cookie"],
        concat!(
            r#"^(?i-u:cookie)\\?["']?[\t ]{0,4}:[\t ]{0,4}\\?["']?(?:[0-9A-Za-z_.$-]{1,40}=[!#-&(-+./-:<-\[\]-~-]{0,7};[\t ]{0,4}){0,8}"#,
            r#"[0-9A-Za-z_.$-]{1,40}=([!#-&(-+./-:<-\[\]-~-]{8,400}(?:;[\t !#-&(-\[\]-~]{0,400})?)"#,
        ),
    ),
    form(
        "password",
        &["curl"],
        r#"^(?i-u:curl)(?:[\t ][\t !-:<-{}~]{0,200}?)?[\t ](?:-u[\t ]{0,4}|--(?:proxy-)?user[= ][\t ]{0,4})["']?[0-9A-Za-z@._+-]{0,64}:([!#-&(-:<-{}~]{1,128})"#,
    ),
    form(
        "password",
        &["mysql", "mariadb"],
        r#"^(?i-u:mysql|mariadb)(?:-?(?:dump|admin|import|check))?(?:[\t ][\t !-:<-{}~]{0,200}?)?[\t ]-p["']?([!#-&(-:<-{}~]{1,128})"#,
    ),
    form(
        "password",
        &["docker", "podman"],
        r#"^(?i-u:docker|podman)[\t ]{1,4}login(?:[\t ][\t !-:<-{}~]{0,200}?)?[\t ]-p[\t ]{1,4}["']?([!#-&(-:<-{}~]{1,128})"#,
    ),
    form("password", &["sshpass"], r#"^(?i-u:sshpass)[\t ]{1,4}-p[\t ]{0,4}["']?([!#-&(-:<-{}~]{1,128})"#),
];
