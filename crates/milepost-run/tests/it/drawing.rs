//! Graphs as pictures.

use insta::assert_snapshot;
use milepost_run::graph::{check, draw};

#[test]
fn a_graph_is_drawn_with_its_conditions_and_loops() {
    let text = r#"
memory: {score: 0}
nodes:
  search: {action: shell, with: {command: ls}, description: 'Find "papers" & <more> #1'}
  review: {action: model, with: {prompt: hi}, remember: {score: size(output.text)}}
  end: {action: approve, with: {question: ok?}}
  pause: {action: wait, with: {for: 1s}}
edges:
  - {from: search, to: review}
  - {from: review, to: search, when: 'memory.score < 8 || output.text == "a|b"', limit: 3}
  - {from: review, to: end, when: memory.score >= 8}
  - {from: end, to: pause}
"#;
    let checked = check("g.yaml".as_ref(), text, &[]);
    assert_snapshot!(draw(&checked.graph.unwrap()), @r#"
    flowchart TD
      search["search<br/>shell<br/>Find #quot;papers#quot; #amp; #lt;more#gt; #35;1"]
      review["review<br/>model"]
      end_{{"end<br/>approve"}}
      pause(("pause<br/>wait"))
      search --> review
      review -.->|"memory.score #lt; 8 #124;#124; output.text == #quot;a#124;b#quot;, at most 3 times"| search
      review -->|"memory.score #gt;= 8"| end_
      end_ --> pause
    "#);
}
