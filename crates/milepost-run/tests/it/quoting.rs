//! What is filled into a command is the text that it is, in whatever quotes its author wrote around it: tried with real
//! shells. Where that cannot be, nothing is filled in.

use std::process::Command;

use insta::assert_snapshot;
use milepost_run::graph::{Quote, check, render};
use milepost_run::run::End;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::support::Scene;

/// Commands that write what is filled in, and what stands before and after it in what they write.
const PLACES: &[(&str, &str, &str)] = &[
    ("printf %s {{ memory.t }}", "", ""),
    ("printf %s '{{ memory.t }}'", "", ""),
    ("printf %s \"{{ memory.t }}\"", "", ""),
    ("printf %s a{{ memory.t }}b", "a", "b"),
    ("printf %s 'a {{ memory.t }} b'", "a ", " b"),
    ("printf %s \"a \\\" {{ memory.t }} b\"", "a \" ", " b"),
    ("printf %s --x={{ memory.t }}", "--x=", ""),
    ("printf %s ~{{ memory.t }}", "~", ""),
    ("printf %s%s {{ memory.t }}{{ memory.t }} | head -c 0; printf %s {{ memory.t }}>&1", "", ""),
    ("V=v; printf %s $V{{ memory.t }}", "v", ""),
    ("V=v; printf %s \"$V{{ memory.t }}\"", "v", ""),
    ("V=v; printf %s \"${V}{{ memory.t }}\"", "v", ""),
    ("printf %s \"costs ${{ memory.t }}\"", "costs $", ""),
    ("printf %s \"$(printf %s. {{ memory.t }})\"", "", "."),
    ("printf %s \"$(printf %s. \"{{ memory.t }}\")\"", "", "."),
    ("printf %s \"$(printf %s. '{{ memory.t }}' | (cat))\"", "", "."),
    ("printf %s \"$((1 + (2)))\" '' {{ memory.t }}", "3", ""),
    ("printf %s `printf x` \"{{ memory.t }}\"", "x", ""),
    ("# it's {{ memory.t }}\nprintf %s {{ memory.t }} # {{ memory.t }}", "", ""),
    ("case x in x) printf %s \"{{ memory.t }}\";; esac", "", ""),
    ("printf %s \\\n  {{ memory.t }}", "", ""),
    ("{% for t in memory.l %}printf %s '{{ t }}';{% endfor %}", "", ""),
    ("{% set t = memory.t %}printf %s \"{{ t }}\"", "", ""),
    (
        "{% if memory.t %}printf %s \"{% else %}printf %s '' '{% endif %}{{ memory.t }}{% if memory.t %}\"{% else %}'{% endif %}",
        "",
        "",
    ),
    ("{% raw %}printf %s '{{'{% endraw %}\"{{ memory.t }}\"", "{{", ""),
    ("printf %s {{ memory.quote | safe }}{{ memory.t }}{{ memory.quote | safe }}", "", ""),
    ("printf %s {{ memory.double | safe }}{{ memory.t }}\"", "", ""),
    (
        "printf %s \"{{ memory.t | escape }}\" | head -c 0; printf %s \"{{ memory.t | tojson }}\" | head -c 0; printf %s {{ memory.t }}",
        "",
        "",
    ),
];

fn names(text: &str) -> Map<String, Value> {
    let memory = json!({"t": text, "l": [text], "quote": "'", "double": "\""});
    [("memory".to_owned(), memory)].into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_command_sees_exactly_the_text(
        text in prop_oneof![
            "[a-z'\"`$(){}\\\\;&|<>#~!*?=\\[\\] \n\t0-9é-]{0,24}",
            prop::sample::select(vec!["", "if", "2", "A=b", "-n", "`id`", "$(id)", "';id;'", "\";id;\"", "a\n#b", "\\", "$HOME", "root", "\r"]).prop_map(str::to_owned),
        ],
    ) {
        for (place, before, after) in PLACES {
            let line = render(place, &names(&text), Quote::Shell).unwrap();
            for shell in ["/bin/sh", "/bin/bash"].iter().filter(|shell| std::path::Path::new(shell).exists()) {
                let out = Command::new(shell).args(["-c", &line]).output().unwrap();
                let wanted = format!("{before}{text}{after}");
                prop_assert_eq!(String::from_utf8_lossy(&out.stdout), wanted, "{} {}: {}", shell, place, line);
            }
        }
    }
}

/// What filters give is quoted as well, whatever HTML would say of it.
#[test]
fn what_a_filter_gives_is_quoted_unless_it_is_safe() {
    let line = |text: &str| render(text, &names("`id`; 'x'"), Quote::Shell).unwrap();
    assert_snapshot!(line("echo {{ memory.t | tojson }} {{ memory.t | escape }}"), @r#"echo '"`id`; \u0027x\u0027"' '`id`; &#x27;x&#x27;'"#);
    assert_snapshot!(line("echo {{ memory.t | safe }}"), @"echo `id`; 'x'");
    assert_snapshot!(line("echo {{ memory.t | safe | upper }}"), @r"echo '`ID`; '\''X'\'''");
}

fn told(command: &str) -> String {
    let file = json!({"memory": {"t": "x"}, "nodes": {"a": {"action": "shell", "with": {"command": command}}}});
    let checked = check("g.json".as_ref(), &file.to_string(), &[]);
    assert_eq!(checked.graph.is_none(), !checked.found.is_empty());
    let lines: Vec<String> = checked.found.iter().map(|one| format!("{}; {}", one.why, one.instead)).collect();
    lines.join("\n")
}

const UNSAFE: &[&str] = &[
    "echo `echo {{ memory.t }}`",
    "echo \"`echo {{ memory.t }}`\"",
    "cat <<END\n{{ memory.t }}\nEND",
    "cat <<END\nx\nEND\necho {{ memory.t }}",
    "echo ${X:-{{ memory.t }}}",
    "echo $(( {{ memory.t }} + 1 ))",
    "(( {{ memory.t }} ))",
    "echo \\{{ memory.t }}",
    "echo ${{ memory.t }}",
    "echo $'a\\'{{ memory.t }}'",
    "echo \"$(case x in a) echo {{ memory.t }};; esac)\"",
    "{% set x %}{{ memory.t }}{% endset %}echo {{ x }}",
    "{% filter upper %}echo {{ memory.t }}{% endfilter %}",
    "{% macro m() %}{{ memory.t }}{% endmacro %}echo {{ m() }}",
];

#[test]
fn a_value_where_nothing_keeps_it_one_word_is_refused_by_the_check_and_by_the_run() {
    for command in UNSAFE {
        assert!(!told(command).is_empty(), "{command}");
        let rendered = render(command, &names("x"), Quote::Shell);
        assert!(rendered.is_err(), "{command}: {rendered:?}");
    }
    assert_snapshot!(told(UNSAFE[0]), @r#"a value stands inside of `…`, where nothing keeps it one word; give it in set: as a variable and write "$NAME" there, or use argv: instead of command:"#);
    assert_snapshot!(told(UNSAFE[11]), @"{% set %} puts a text together before it stands in the command; compute it in a set node of its own, and fill that in");
    assert_snapshot!(told("{% if memory.t %}echo '{% endif %}{{ memory.t }}'"), @r#"a value stands after a block of {% … %} in which quotes begin or end, where nothing keeps it one word; give it in set: as a variable and write "$NAME" there, or use argv: instead of command:"#);
    assert_eq!(told("{% if memory.t %}echo 'a' {% else %}echo \"b\" {% endif %}\"$(date)\" '{{ memory.t }}'"), "");
    let file = json!({"nodes": {"a": {"action": "checks", "with": {"prompt": "mend it", "checks": {"one": "echo `{{ node }}`"}}}}});
    assert!(check("g.json".as_ref(), &file.to_string(), &[]).graph.is_none());
}

#[tokio::test]
async fn a_template_says_which_output_a_skipped_node_did_not_give() {
    let scene = Scene::new();
    let text = "memory: {go: false}\nnodes:\n  a: {action: set, with: {x: 1}}\n  b: {action: shell, with: {command: echo}}\n  c: {action: shell, with: {command: 'echo {{ outputs.b.stdout }}'}}\nedges:\n  - {from: a, to: b, when: memory.go}\n  - {from: a, to: c}\n  - {from: b, to: c}\n";
    let (_, end) = scene.start(text).await;
    let End::Paused { why, .. } = end else { panic!("{end:?}") };
    assert!(why.contains("outputs.b.stdout is not there: b was skipped or has not run"), "{why}");
}
