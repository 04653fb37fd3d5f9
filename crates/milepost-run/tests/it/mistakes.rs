//! Every mistake is told with its place, what is wrong, and what to write instead. A person reads these: they are
//! snapshots.

use insta::assert_snapshot;
use milepost_run::graph::{Checked, check};

fn checked(text: &str) -> Checked {
    check("g.yaml".as_ref(), text, &[])
}

fn told(text: &str) -> String {
    let checked = checked(text);
    assert_eq!(checked.graph.is_none(), checked.errors().next().is_some(), "{:?}", checked.found);
    let lines: Vec<String> = checked.found.iter().map(|one| format!("{:?} {one}", one.severity)).collect();
    lines.join("\n")
}

/// Two nodes, and what comes below them.
fn two(rest: &str) -> String {
    told(&format!(
        "memory: {{count: 0, name: x}}\nnodes:\n  a: {{action: shell, with: {{command: ls}}}}\n  b: {{action: set, with: {{count: 1}}}}\nedges:\n{rest}"
    ))
}

#[test]
fn a_circle_without_a_limit() {
    assert_snapshot!(two("  - {from: a, to: b}\n  - {from: b, to: a, when: memory.count < 3}\n"), @"Error g.yaml:7:5: these nodes run in a circle that never ends: a → b → a; write limit: and a number at the edge that leads back, and when: and a condition");
    assert_snapshot!(two("  - {from: a, to: b}\n  - {from: b, to: b}\n"), @"Error g.yaml:7:5: these nodes run in a circle that never ends: b → b; write limit: and a number at the edge that leads back, and when: and a condition");
    assert_snapshot!(told("steps:\n  - {id: a, action: set, with: {x: 1}, dependencies: [b]}\n  - {id: b, action: set, with: {y: 1}, dependencies: [a]}\n"), @"Error g.yaml:2:55: these nodes run in a circle that never ends: a → b → a; remove one of the dependencies");
}

#[test]
fn a_limit_where_there_is_no_loop() {
    assert_snapshot!(two("  - {from: a, to: b, limit: 3}\n"), @"Error g.yaml:6:5: limit: it has a limit, but leads from a on to b: nothing runs twice; remove limit, or add the way from b to a");
    assert_snapshot!(two("  - {from: a, to: b}\n  - {from: b, to: a, limit: 3}\n"), @"Warning g.yaml:7:5: limit: the loop has no condition and always runs as often as it may; write when: and the condition to go on");
    assert_snapshot!(two("  - {from: a, to: b, on_limit: stop}\n"), @r#"
    Error g.yaml:6:32: on_limit: the edge has no limit; write limit: too, or remove it
    Error g.yaml:6:32: on_limit: "stop" is not known; write one of pause, go_on
    "#);
}

#[test]
fn a_node_that_is_not_there() {
    assert_snapshot!(two("  - {from: a, to: bb}\n  - {from: nowhere_at_all, to: b}\n  - {to: b}\n"), @r#"
    Error g.yaml:6:19: to: there is no node "bb"; did you mean b?
    Error g.yaml:7:12: from: there is no node "nowhere_at_all"; what is known: a, b
    Error g.yaml:8:5: edge: it has no "from"; write from: and a node's name
    "#);
    assert_snapshot!(told("start: begin\nnodes:\n  beginn: {action: set, with: {x: 1}}\n"), @r#"Error g.yaml:1:8: start: there is no node "begin"; did you mean beginn?"#);
    assert_snapshot!(told("steps:\n  - {id: one, action: set, with: {x: 1}}\n  - {id: two, action: set, with: {y: 1}, dependencies: [onne]}\n"), @r#"Error g.yaml:3:57: dependencies: there is no node "onne"; did you mean one?"#);
}

#[test]
fn a_node_that_never_runs() {
    assert_snapshot!(told("start: a\nnodes:\n  a: {action: set, with: {x: 1}}\n  b: {action: set, with: {y: 1}}\n  c: {action: set, with: {z: 1}}\nedges:\n  - {from: a, to: b}\n"), @"Error g.yaml:5:3: c: no way leads to this node: it never runs; add an edge to it, or name it in start");
    assert_snapshot!(told("nodes:\n  a: {action: set, with: {x: 1}}\n  b: {action: set, with: {y: 1}}\n  c: {action: set, with: {z: 1}}\nedges:\n  - {from: a, to: b}\n"), @"Error g.yaml:4:3: c: no edge leads to this node or away from it; add an edge to it, or name it in start");
}

#[test]
fn two_nodes_that_write_one_output() {
    assert_snapshot!(told("nodes:\n  a: {action: set, with: {x: 1}, output: found}\n  b: {action: set, with: {y: 1}, output: found, needs: a}\n"), @r#"Error g.yaml:3:3: b: its output "found" is the output of a too; give one of them another name with output:"#);
    assert_snapshot!(told("nodes:\n  a: {action: set, with: {x: 1}}\n  b: {action: shell, with: {command: ls}, remember: {x: output.code}}\n"), @"Error g.yaml:3:3: b: it may run at the same time as a and both write memory.x; put an edge between them, or let each write a key of its own");
}

#[test]
fn two_branches_of_one_fork_may_write_one_key() {
    let text = "nodes:\n  fork: {action: shell, with: {command: ls}}\n  a: {action: set, with: {x: 1}}\n  b: {action: set, with: {x: 2}}\nedges:\n  - {from: fork, to: a, when: output.code == 0}\n  - {from: fork, to: b, when: output.code != 0}\n";
    assert_eq!(told(text), "");
}

#[test]
fn a_condition_that_does_not_parse() {
    assert_snapshot!(two("  - {from: a, to: b, when: memory.count <}\n"), @"Error g.yaml:6:42: when: this does not parse as CEL: it ends too early; look at the brackets, quotes and operators there");
    assert_snapshot!(two("  - from: a\n    to: b\n    when: \"memory.count > 1 and memory.count < 3\"\n"), @"Error g.yaml:8:29: when: this does not parse as CEL: mismatched input 'and'; CEL writes && for and, || for or, ! for not");
    assert_snapshot!(two("  - {from: a, to: b, when: memory.count = 3}\n"), @"Error g.yaml:6:41: when: this does not parse as CEL: token recognition error at: '= '; CEL writes == for equal");
    assert_snapshot!(two("  - {from: a, to: b, when: \"{{ memory.count }} > 3\"}\n"), @"Error g.yaml:6:45: when: this does not parse as CEL: mismatched input '}'; this is an expression, not a template: write it without {{ }}");
    assert_snapshot!(two("  - {from: a, to: b, when: [1]}\n"), @"Error g.yaml:6:28: when: a list stands here; write a CEL expression, such as output.score");
    assert_snapshot!(two("  - {from: a, to: b, when: \"\"}\n"), @"Error g.yaml:6:29: when: the expression is empty; write a condition, such as memory.count > 3");
}

/// What a mistake leads to is not told as well: whoever mends it would find nothing there.
#[test]
fn only_the_mistake_itself_is_told() {
    let three = |rest: &str| {
        told(&format!(
            "memory: {{n: 0}}\nstart: a\nnodes:\n  a: {{action: shell, with: {{command: ls}}}}\n  b: {{action: set, with: {{n: 1}}}}\n  c: {{action: shell, with: {{command: 'echo {{{{ outputs.a.code }}}}'}}}}\nedges:\n  - {{from: a, to: b}}\n{rest}"
        ))
    };
    assert_snapshot!(three("  - {from: b, to: c, when: memory.n <}\n"), @"Error g.yaml:9:38: when: this does not parse as CEL: it ends too early; look at the brackets, quotes and operators there");
    assert_snapshot!(three("  - {from: b, to: c}\n  - {from: c, to: b, when: memory.n < 3, limit: many}\n"), @r#"Error g.yaml:10:49: limit: "many" does not fit; write a whole number from 1 to 1000000"#);
    assert_snapshot!(three("  - {from: bb, to: c}\n"), @r#"Error g.yaml:9:12: from: there is no node "bb"; did you mean b?"#);
    assert_snapshot!(three("  - {from: b, too: c}\n"), @r#"Error g.yaml:9:15: edge: there is no key "too"; did you mean to?"#);
    assert_snapshot!(three("  - {from: b, to: cc}\n  - {from: c, to: b, when: memory.n < 3, limit: 2}\n"), @r#"Error g.yaml:9:19: to: there is no node "cc"; did you mean c?"#);
    assert_snapshot!(told("nodes:\n  a: shell\n  b: {action: shell, with: {command: 'echo {{ outputs.a.code }}'}, needs: a}\n"), @"Error g.yaml:2:6: a: a text stands here; write its keys below it");
    assert_snapshot!(told("nodes:\n  a: {actoin: shell, with: {command: ls}}\n"), @r#"Error g.yaml:2:7: a: there is no key "actoin"; did you mean action?"#);
    assert_snapshot!(told("nodes:\n  a: {action: shell, with: {command: ls}, remember: {code: output.(}}\n  b: {action: shell, with: {command: 'echo {{ memory.code }}'}, needs: a}\noutputs: {code: memory.code + 1}\n"), @"Error g.yaml:2:67: remember: this does not parse as CEL: no viable alternative at input '.('; look at the brackets, quotes and operators there");
}

/// What is wrong besides is told at once, also where a way cannot be read: with the node that was probably meant in its place, or,
/// where nobody knows, what is wrong whatever was meant; what may be mended with it is a warning that says so.
#[test]
fn what_else_is_wrong_is_told_beside_a_name_that_is_not_there() {
    let four = |edges: &str| {
        told(&format!(
            "memory: {{n: 0}}\nstart: first\nnodes:\n  first: {{action: shell, with: {{command: ls}}}}\n  left: {{action: set, with: {{n: 1}}}}\n  right: {{action: set, with: {{n: 2}}}}\n  lost: {{action: set, with: {{m: 1}}}}\nedges:\n{edges}"
        ))
    };
    // A race and a lost node beside a misspelt end.
    assert_snapshot!(four("  - {from: first, to: leftt}\n  - {from: first, to: right}\n"), @r#"
    Error g.yaml:6:3: right: it may run at the same time as left and both write memory.n; put an edge between them, or let each write a key of its own
    Error g.yaml:7:3: lost: no way leads to this node: it never runs; add an edge to it, or name it in start
    Error g.yaml:9:23: to: there is no node "leftt"; did you mean left?
    "#);
    // The misspelt way orders the two: there is no race.
    assert_snapshot!(four("  - {from: first, to: left}\n  - {from: lefft, to: right}\n"), @r#"
    Error g.yaml:7:3: lost: no way leads to this node: it never runs; add an edge to it, or name it in start
    Error g.yaml:10:12: from: there is no node "lefft"; did you mean left?
    "#);
    // Nobody knows where it leads: the node may be what was meant, and the two may be ordered by it. Neither is sure.
    assert_snapshot!(four("  - {from: first, to: left}\n  - {from: first, to: right}\n  - {from: left, to: somewhere_else}\n"), @r#"
    Warning g.yaml:6:3: right: it may run at the same time as left and both write memory.n, unless the way at g.yaml:11:5 keeps them apart; mend that way; if they still may, put an edge between them, or let each write a key of its own
    Warning g.yaml:7:3: lost: no way that can be read leads to this node; name it at g.yaml:11:5, or add an edge to it
    Error g.yaml:11:22: to: there is no node "somewhere_else"; what is known: first, left, right, lost
    "#);
    // Which two a way orders that cannot be read nobody knows, and a loop's way back may be that one.
    assert_snapshot!(four("  - {from: first, to: left}\n  - {from: first, to: right}\n  - {from: right, to: left, when: memory.n < 3, limit: 3}\n  - {from: nowhere_at_all, to: somewhere_else}\n  - {from: right, to: lost}\n"), @r#"
    Warning g.yaml:6:3: right: it may run at the same time as left and both write memory.n, unless the way at g.yaml:12:5 keeps them apart; mend that way; if they still may, put an edge between them, or let each write a key of its own
    Warning g.yaml:11:5: limit: it has a limit, and no way that can be read leads from left to right; mend the way at g.yaml:12:5; if it is not that one, remove limit
    Error g.yaml:12:12: from: there is no node "nowhere_at_all"; what is known: first, left, right, lost
    Error g.yaml:12:32: to: there is no node "somewhere_else"; what is known: first, left, right, lost
    "#);
    // An order that can be read keeps them apart, whatever else cannot; branches of one fork, too.
    assert_snapshot!(four("  - {from: first, to: left}\n  - {from: left, to: right}\n  - {from: right, to: lost}\n  - {from: left, to: somewhere_else}\n"), @r#"Error g.yaml:12:22: to: there is no node "somewhere_else"; what is known: first, left, right, lost"#);
    assert_snapshot!(four("  - {from: first, to: left, when: output.code == 0}\n  - {from: first, to: right, when: output.code != 0}\n  - {from: right, to: lost}\n  - {from: left, to: somewhere_else}\n"), @r#"Error g.yaml:12:22: to: there is no node "somewhere_else"; what is known: first, left, right, lost"#);
    // From wherever it comes, it does not lead to the lost one.
    assert_snapshot!(four("  - {from: first, to: left}\n  - {from: first, to: right}\n  - {from: somewhere_else, to: first}\n"), @r#"
    Warning g.yaml:6:3: right: it may run at the same time as left and both write memory.n, unless the way at g.yaml:11:5 keeps them apart; mend that way; if they still may, put an edge between them, or let each write a key of its own
    Error g.yaml:7:3: lost: no way leads to this node: it never runs; add an edge to it, or name it in start
    Error g.yaml:11:12: from: there is no node "somewhere_else"; what is known: first, left, right, lost
    "#);
    // A circle hides neither.
    assert_snapshot!(four("  - {from: first, to: left}\n  - {from: first, to: right}\n  - {from: right, to: first}\n"), @r#"
    Error g.yaml:6:3: right: it may run at the same time as left and both write memory.n; put an edge between them, or let each write a key of its own
    Error g.yaml:7:3: lost: no way leads to this node: it never runs; add an edge to it, or name it in start
    Error g.yaml:11:5: these nodes run in a circle that never ends: first → right → first; write limit: and a number at the edge that leads back, and when: and a condition
    "#);
    // The condition of a way that cannot be read is looked at, too.
    assert_snapshot!(four("  - {from: first, to: leftt, when: output.kode == 0}\n  - {from: first, to: somewhere_else, when: memroy.n == 1}\n  - {from: left, to: right}\n  - {from: right, to: lost}\n"), @r#"
    Error g.yaml:9:23: to: there is no node "leftt"; did you mean left?
    Error g.yaml:9:42: when: output has no "kode"; did you mean code?
    Error g.yaml:10:23: to: there is no node "somewhere_else"; what is known: first, left, right, lost
    Error g.yaml:10:45: when: there is no "memroy" here; did you mean memory?
    "#);
    // A key that is misspelt, a start, a dependency, edges that are no list.
    assert_snapshot!(four("  - {from: first, too: left}\n  - {from: left, to: right}\n"), @r#"
    Error g.yaml:7:3: lost: no way leads to this node: it never runs; add an edge to it, or name it in start
    Error g.yaml:9:19: edge: there is no key "too"; did you mean to?
    "#);
    assert_snapshot!(four("  first: left\n"), @r#"
    Warning g.yaml:5:3: left: no way that can be read leads to this node; name it at g.yaml:9:3, or add an edge to it
    Warning g.yaml:6:3: right: no way that can be read leads to this node; name it at g.yaml:9:3, or add an edge to it
    Warning g.yaml:7:3: lost: no way that can be read leads to this node; name it at g.yaml:9:3, or add an edge to it
    Error g.yaml:9:3: edges: a section stands here; write a list
    "#);
    assert_snapshot!(told("start: [a, nowhere_at_all]\nnodes:\n  a: {action: set, with: {x: 1}}\n  b: {action: set, with: {y: 1}}\n  c: {action: set, with: {z: 1}}\nedges:\n  - {from: b, to: c}\n"), @r#"
    Error g.yaml:1:12: start: there is no node "nowhere_at_all"; what is known: a, b, c
    Warning g.yaml:4:3: b: no way that can be read leads to this node; name it at g.yaml:1:12, or add an edge to it
    "#);
    assert_snapshot!(told("steps:\n  - {id: one, action: set, with: {x: 1}}\n  - {id: two, action: set, with: {x: 2}, dependencies: [onne]}\n  - {id: three, action: set, with: {x: 3}, dependencies: [two]}\n  - {id: four, action: set, with: {x: 4}, dependencies: [one]}\n"), @r#"
    Error g.yaml:3:57: dependencies: there is no node "onne"; did you mean one?
    Error g.yaml:5:10: four: it may run at the same time as two and both write memory.x; put an edge between them, or let each write a key of its own
    "#);
}

#[test]
fn a_condition_that_compares_what_cannot_be_compared() {
    assert_snapshot!(two("  - {from: a, to: b, when: memory.count == '3'}\n"), @"Error g.yaml:6:41: when: a number is compared with a text, and they are never equal; write the number without quotes, or use int(…)");
    assert_snapshot!(two("  - {from: a, to: b, when: 'memory.name < 3'}\n"), @"Error g.yaml:6:41: when: a text is compared with a number, and they have no order; write the number without quotes, or use int(…)");
    assert_snapshot!(two("  - {from: a, to: b, when: memory.count}\n"), @"Error g.yaml:6:28: when: a condition gives true or false, this one gives a number; compare it with something");
    assert_snapshot!(two("  - {from: a, to: b, when: 'output.stdout && true'}\n"), @"Error g.yaml:6:35: when: a text stands where true or false is needed; compare it with something");
    assert_snapshot!(two("  - {from: a, to: b, when: 'output.code.contains(\"x\")'}\n"), @"Error g.yaml:6:49: when: contains does not work on a number; use a text; for lists, in");
    assert_snapshot!(two("  - {from: a, to: b, when: 'output.stdout + 1 == \"x\"'}\n"), @"Error g.yaml:6:43: when: a text and a number cannot be added; turn one into the other: string(…), int(…)");
    assert_snapshot!(two("  - {from: a, to: b, when: '[1] > 2'}\n"), @"Error g.yaml:6:33: when: a list is neither less nor greater than anything; compare numbers or texts; size(…) gives a number");
    assert_snapshot!(two("  - {from: a, to: b, when: '3 in output.stdout'}\n"), @"Error g.yaml:6:31: when: nothing can be in a text; use a list or a map; for texts, contains");
}

#[test]
fn a_condition_with_names_that_are_not_there() {
    assert_snapshot!(two("  - {from: a, to: b, when: memory.cuont > 3}\n"), @r#"Error g.yaml:6:34: when: memory has no "cuont"; did you mean count?"#);
    assert_snapshot!(two("  - {from: a, to: b, when: memroy.count > 3}\n"), @r#"Error g.yaml:6:28: when: there is no "memroy" here; did you mean memory?"#);
    assert_snapshot!(two("  - {from: a, to: b, when: outputs.c.code > 3}\n"), @r#"Error g.yaml:6:35: when: outputs has no "c"; did you mean a?"#);
    assert_snapshot!(two("  - {from: a, to: b, when: output.kode > 3}\n"), @r#"Error g.yaml:6:34: when: output has no "kode"; did you mean code?"#);
    assert_snapshot!(two("  - {from: a, to: b, when: len(output.stdout) > 3}\n"), @r#"Error g.yaml:6:31: when: there is no function "len"; what is known: size, contains, startsWith, endsWith, matches, int, uint, double, string, bool, type, dyn, has, all, exists, exists_one, map, filter"#);
    assert_eq!(two("  - {from: a, to: b, when: 'has(memory.other) || [1].all(x, x > 0) || failed'}\n"), "");
}

#[test]
fn the_place_of_a_mistake_is_found_in_long_texts() {
    let text = "nodes:\n  a:\n    action: shell\n    with:\n      command: |\n        echo one\n        echo {{ memory.nothing }}\n";
    assert_snapshot!(told(text), @"Error g.yaml:7:17: command: the template uses memory.nothing, which is not there; nothing is there yet: add it first");
    let toml =
        "[nodes.a]\naction = \"shell\"\n[nodes.a.with]\ncommand = '''\necho one\necho {{ memory.nothing }}\n'''\n";
    let found = check("g.toml".as_ref(), toml, &[]).found;
    assert_snapshot!(found[0].to_string(), @"g.toml:6:9: command: the template uses memory.nothing, which is not there; nothing is there yet: add it first");
}

#[test]
fn a_template_with_a_mistake() {
    let shell = |command: &str| {
        told(&format!("memory: {{topic: logs}}\nnodes:\n  a: {{action: shell, with: {{command: \"{command}\"}}}}\n"))
    };
    assert_snapshot!(shell("echo {{ topic }}"), @r#"Error g.yaml:3:47: command: the template uses "topic", which is not there; what is known: attempt, iteration, key, memory, node, outputs, session"#);
    assert_snapshot!(shell("echo {{ memory.topci }}"), @"Error g.yaml:3:47: command: the template uses memory.topci, which is not there; did you mean topic?");
    assert_snapshot!(shell("echo {{ memory.topic"), @"Error g.yaml:3:54: command: the template does not parse: unexpected end of input, expected end of variable block; look at the brackets and quotes there; write {{ '{{' }} for two plain brackets");
    assert_snapshot!(shell("echo {{ memory.topic | uper }}"), @r#"Error g.yaml:3:62: command: the template uses a filter "uper", which is not there; use a filter of Jinja"#);
    assert_snapshot!(shell("echo {{ outputs.b }}"), @"Error g.yaml:3:47: command: the template uses outputs.b, which is not there; did you mean a?");
    assert_snapshot!(shell("{% for x in memory.topic %}{{ x }}{% endif %}"), @"Error g.yaml:3:76: command: the template does not parse: unknown statement endif; look at the brackets and quotes there; write {{ '{{' }} for two plain brackets");
    assert_eq!(
        shell(
            "{% set y = 1 %}{% for x in range(3) %}{{ x + y }} {{ loop.index }}{% endfor %} {{ memory.topic | upper }}"
        ),
        ""
    );
}

#[test]
fn an_output_that_may_not_be_there_yet() {
    assert_snapshot!(told("nodes:\n  a: {action: shell, with: {command: 'echo {{ outputs.b.stdout }}'}}\n  b: {action: shell, with: {command: ls}}\n  c: {action: shell, with: {command: ls}}\nedges:\n  - {from: a, to: c, when: outputs.b.code == 0}\n  - {from: b, to: c}\n"), @r#"
    Warning g.yaml:2:47: command: b is not sure to have run before; add an edge from b, or test outputs.b for none
    Warning g.yaml:6:28: when: b is not sure to have run before; add an edge from b, or ask has(outputs.b) first
    "#);
    let looped = "nodes:\n  a: {action: shell, with: {command: 'echo {{ outputs.b.stdout if iteration > 0 }}'}}\n  b: {action: shell, with: {command: ls}}\nedges:\n  - {from: a, to: b}\n  - {from: b, to: a, when: output.code != 0, limit: 3}\n";
    assert_eq!(told(looped), "");
}

#[test]
fn keys_and_values_that_are_not_known() {
    assert_snapshot!(told("nodes:\n  a: {action: shel, with: {command: ls}}\n"), @r#"Error g.yaml:2:15: a: there is no action "shel"; did you mean shell?"#);
    assert_snapshot!(told("nodes:\n  a: {action: shell, wiht: {command: ls}}\n"), @r#"Error g.yaml:2:22: a: there is no key "wiht"; did you mean with?"#);
    assert_snapshot!(told("nodes:\n  a: {action: shell, with: {comand: ls}}\n"), @r#"Error g.yaml:2:29: shell: there is no key "comand"; did you mean command?"#);
    assert_snapshot!(told("nodes:\n  a: {action: shell, with: {command: ls, argv: [ls]}}\n"), @"Error g.yaml:2:15: a: shell needs one of command, argv; keep one of them");
    assert_snapshot!(told("nodes:\n  a: {action: http, with: {method: FETCH, ok: [20], max_response_bytes: 0}}\n"), @r#"
    Error g.yaml:2:15: a: http needs url; write url: where to
    Error g.yaml:2:36: method: "FETCH" is not known; write one of GET, HEAD, POST, PUT, PATCH, DELETE
    Error g.yaml:2:48: ok: "20" does not fit; write a whole number from 100 to 599
    Error g.yaml:2:73: max_response_bytes: "0" does not fit; write a whole number from 1 to 67108864
    "#);
    assert_snapshot!(told("nodes:\n  a: {with: {command: ls}}\nedgs: []\n"), @r#"
    Error g.yaml:2:3: a: it has no action; write action: and one of shell, http, set, wait, ask, approve, model, agent, checks, mcp, graph
    Error g.yaml:3:1: there is no key "edgs"; did you mean edges?
    "#);
    assert_snapshot!(told("nodes:\n  my-node: {action: set, with: {1x: 1}}\n"), @r#"
    Error g.yaml:2:3: "my-node" is no name: letters, digits and _, at most MAX_NAME_BYTES, 64, and no digit first; write my_node
    Error g.yaml:2:33: my-node: "1x" is no name: letters, digits and _, at most MAX_NAME_BYTES, 64, and no digit first; choose another
    "#);
    assert_snapshot!(told("nodes:\n  a: {action: set}\n  b: {action: set, with: [1], needs: a}\n"), @r#"
    Error g.yaml:2:15: a: set has nothing to put anywhere; write parameters: and keys below it
    Error g.yaml:3:26: b: a list stands here; write its keys below it
    "#);
    assert_snapshot!(told("nodes: {}\n"), @"Error g.yaml:1:8: there are no nodes; write at least one");
    assert_snapshot!(told("name: empty\n"), @"Error g.yaml:1:1: it has neither nodes nor steps; write nodes: and one below it");
    assert_snapshot!(told("nodes:\n  a: {action: set, with: {x: 1}}\nsteps: []\n"), @"Error g.yaml:3:8: a plan's steps and a graph's nodes stand in one file; keep one of them");
    assert_snapshot!(told("nodes:\n  a: shell\nparallel: 0\n"), @r#"
    Error g.yaml:2:6: a: a text stands here; write its keys below it
    Error g.yaml:3:11: parallel: "0" does not fit; write a whole number from 1 to 256
    "#);
    assert_snapshot!(told("steps:\n  - {id: a, action: set, with: {x: 1}}\n  - {id: a, action: set, with: {y: 1}}\n"), @r#"Error g.yaml:3:10: id: "a" is the name of another step, at g.yaml:2:10; give each step a name of its own"#);
    assert_snapshot!(told("nodes: [\n"), @"Error g.yaml:2:1: this is not YAML: while parsing a node, did not find expected node content; look at the indentation, colons and quotes there");
}

#[test]
fn times_and_numbers_that_do_not_fit() {
    assert_snapshot!(told("nodes:\n  a: {action: wait, with: {for: 5}, timeout: 3 weeks, retry: {attempts: 0, backoff: 1y}, idempotent: maybe, on_error: stop}\n"), @r#"
    Error g.yaml:2:33: for: "5" is not a length of time; write a unit too, such as 5s or 5ms
    Error g.yaml:2:46: timeout: "3 weeks" is not a length of time; write a number and a unit, such as 500ms, 20s, 5m, 1h30m or 2d
    Error g.yaml:2:73: attempts: "0" does not fit; write a whole number from 1 to 1000
    Error g.yaml:2:102: idempotent: "maybe" does not fit; write true or false
    Error g.yaml:2:119: on_error: "stop" is not known; write one of pause, go_on
    "#);
    assert_snapshot!(told("nodes:\n  a: {action: wait, with: {for: 5s}, retry: 5000}\n"), @r#"Error g.yaml:2:45: retry: "5000" does not fit; write a whole number from 1 to 1000"#);
}

#[test]
fn what_is_remembered_is_checked_too() {
    assert_snapshot!(told("nodes:\n  a: {action: shell, with: {command: ls}, remember: {code: output.kode, b-d: '1', e: 'x +'}}\noutputs: {final: memory.cod}\n"), @r#"
    Error g.yaml:2:66: code: output has no "kode"; did you mean code?
    Error g.yaml:2:73: remember: "b-d" is no name: letters, digits and _, at most MAX_NAME_BYTES, 64, and no digit first; write b_d
    Error g.yaml:2:90: remember: this does not parse as CEL: it ends too early; look at the brackets, quotes and operators there
    Error g.yaml:3:24: final: memory has no "cod"; did you mean code?
    "#);
}

#[test]
fn computed_values_are_checked() {
    assert_snapshot!(told("memory: {count: 0}\nnodes:\n  a: {action: set, with: {count: {cel: memory.count + 'x'}, b: {cel: [1]}, c: {cel: 'memory.'}}}\n"), @r#"
    Error g.yaml:3:70: b: a list stands here; write a CEL expression, such as memory.count + 1
    Error g.yaml:3:93: c: this does not parse as CEL: no viable alternative at input '.'; look at the brackets, quotes and operators there
    "#);
}

#[test]
fn hostile_files_are_refused_and_no_more() {
    let deep = format!(
        "nodes:\n  a: {{action: set, with: {{x: 1}}}}\n  b: {{action: set, with: {{y: 1}}}}\nedges:\n  - {{from: a, to: b, when: '{}1{}'}}\n",
        "(".repeat(900),
        ")".repeat(900)
    );
    assert_snapshot!(told(&deep), @"Error g.yaml:5:29: when: it has more operators than the limit MAX_EXPRESSION_PARTS, 200; compute part of it in a node of its own");
    let output =
        |text: String| told(&format!("nodes:\n  a: {{action: set, with: {{x: 1}}}}\noutputs: {{o: '{text}'}}\n"));
    for wrong in [
        "-".repeat(1000) + "1",
        "1+".repeat(1000) + "1",
        "memory".to_owned() + &".a".repeat(1000),
        "!".repeat(900) + "true",
    ] {
        assert!(output(wrong.clone()).contains("MAX_EXPRESSION_PARTS"), "{wrong}");
    }
    assert!(output("1 + ".repeat(1000) + "1").contains("MAX_EXPRESSION_BYTES"));
    let shell = |text: String| told(&format!("nodes:\n  a: {{action: shell, with: {{command: '{text}'}}}}\n"));
    let chains = [
        "1+".repeat(5000) + "1",
        "memory".to_owned() + &".a".repeat(5000),
        "not ".repeat(5000) + "1",
        "1".to_owned() + &"|upper".repeat(5000),
    ];
    for wrong in chains {
        assert!(shell(format!("{{{{ {wrong} }}}}")).contains("MAX_TEMPLATE_PARTS"));
        assert!(shell(format!("{{% if {wrong} %}}")).contains("MAX_TEMPLATE_PARTS"));
    }
    assert!(!shell("{% if x %}".repeat(5000)).is_empty());
    assert!(!shell(format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000))).is_empty());
    assert!(shell("x".repeat(300 << 10)).contains("MAX_TEMPLATE_BYTES"));
    assert!(shell("x".repeat(2 << 20)).contains("MAX_GRAPH_BYTES"));
}

/// As long as they may be, expressions and templates are read without a stack running over.
#[test]
fn what_is_just_within_the_limits_is_read() {
    let output =
        |text: String| told(&format!("nodes:\n  a: {{action: set, with: {{x: 1}}}}\noutputs: {{o: '{text}'}}\n"));
    for long in [
        "1+".repeat(200) + "1",
        "dyn(session)".to_owned() + &".a".repeat(198),
        "!".repeat(200) + "true",
        "[".repeat(60) + "1" + &"]".repeat(60),
    ] {
        assert!(!output(long.clone()).contains("MAX_EXPRESSION_PARTS"), "{long}");
    }
    let shell = |text: String| told(&format!("nodes:\n  a: {{action: shell, with: {{command: '{text}'}}}}\n"));
    for long in [
        "1+".repeat(198) + "1",
        "not ".repeat(190) + "1",
        "1".to_owned() + &"|upper".repeat(190),
        "node".to_owned() + &".a".repeat(190),
    ] {
        assert!(!shell(format!("{{{{ {long} }}}}")).contains("MAX_TEMPLATE_PARTS"), "{long}");
    }
}

/// A chain of many nodes is looked at without a recursion of ours.
#[test]
fn a_long_chain_is_no_problem() {
    let mut text = String::from("steps:\n");
    for n in 0..5000 {
        let need = if n == 0 { String::new() } else { format!(", needs: s{}", n - 1) };
        text.push_str(&format!("  - {{id: s{n}, action: set, with: {{x{n}: 1}}{need}}}\n"));
    }
    assert_eq!(checked(&text).graph.unwrap().nodes.len(), 5000);
}

#[test]
fn a_question_or_a_wait_that_cannot_end_as_it_is_written() {
    let one = |action: &str, with: &str| told(&format!("nodes:\n  a: {{action: {action}, with: {{{with}}}}}\n"));
    assert_snapshot!(one("ask", "question: q, choices: [a, b], default: c, timeout: 1m"), @r#"Error g.yaml:2:66: default: "c" is not among the choices; write one of a, b"#);
    assert_snapshot!(one("ask", "question: q, default: c"), @"Error g.yaml:2:49: default: the question waits for ever, and this answer is never given; write timeout: and how long to wait, or remove it");
    assert_snapshot!(one("approve", "question: q, default: 'yes'"), @"Error g.yaml:2:53: default: the question waits for ever, and this answer is never given; write timeout: and how long to wait, or remove it");
    assert_snapshot!(one("wait", "until: nonsense"), @r#"Error g.yaml:2:35: until: "nonsense" is not a date and a time; write one, such as 2026-11-16T12:00:00Z"#);
    assert_eq!(one("wait", "until: '{{ session }}'"), "");
    assert_eq!(one("ask", "question: q, choices: [a, b], default: b, timeout: 1m"), "");
}

/// Also where a template does not run when it is looked at, and beside other mistakes.
#[test]
fn every_filter_and_test_that_is_not_there_is_told() {
    let text = r#"
memory: {go: true, l: [1], t: x}
nodes:
  a: {action: shell, with: {command: 'echo {% if memory.go %}{{ "x" | nosuchfilter }}{% endif %}'}}
  b: {action: shell, with: {command: 'echo {% for x in memory.l %}{{ x is nosuchtest }}{% endfor %}'}}
  c: {action: model, with: {prompt: '{{ memory.zz }} {{ memory.t | uppr | lower }}'}}
  d: {action: model, with: {prompt: '{% filter shout %}{{ memory.t if memory.go is deffined else memory.t | trim | trimm }}{% endfilter %}'}}
  e:
    action: model
    with:
      prompt: |
        {{ memory.t
        | upper }}
        {{ memory.t | nope }}
  f: {action: model, with: {prompt: '{% macro m(x) %}{{ x | never }}{% endmacro %}{{ memory.l | map("upper") | join(",") | default("x") }}'}}
start: [a, b, c, d, e, f]
"#;
    assert_snapshot!(told(text), @r#"
    Error g.yaml:4:71: command: the template uses a filter "nosuchfilter", which is not there; use a filter of Jinja
    Error g.yaml:5:75: command: the template uses a test "nosuchtest", which is not there; use a test of Jinja
    Error g.yaml:6:41: prompt: the template uses memory.zz, which is not there; what is known: go, l, t
    Error g.yaml:6:68: prompt: the template uses a filter "uppr", which is not there; use a filter of Jinja
    Error g.yaml:7:48: prompt: the template uses a filter "shout", which is not there; use a filter of Jinja
    Error g.yaml:7:84: prompt: the template uses a test "deffined", which is not there; use a test of Jinja
    Error g.yaml:7:116: prompt: the template uses a filter "trimm", which is not there; use a filter of Jinja
    Error g.yaml:14:23: prompt: the template uses a filter "nope", which is not there; use a filter of Jinja
    Error g.yaml:15:61: prompt: the template uses a filter "never", which is not there; use a filter of Jinja
    "#);
}
