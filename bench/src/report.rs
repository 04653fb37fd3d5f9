//! What a benchmark prints: one line per figure, and whether any fell short of its bar.

use std::fmt;

/// Which side of the bar is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// The value must not exceed the bar.
    AtMost,
    /// The value must reach the bar.
    AtLeast,
}

/// One value held against its bar. Displays as `GROUP.NAME VALUE <= BAR ok`.
#[derive(Debug, Clone)]
pub struct Figure {
    /// `store.flat`, say.
    pub name: String,
    /// What was measured, a ratio unless the name carries a unit.
    pub value: f64,
    /// Which side is good.
    pub want: Want,
    /// The bar.
    pub bar: f64,
    /// Whether the value means anything: a smoke test's does not.
    pub judged: bool,
}

impl Figure {
    /// Whether the bar is met. A value that is not a number meets none.
    pub fn ok(&self) -> bool {
        match self.want {
            Want::AtMost => self.value <= self.bar,
            Want::AtLeast => self.value >= self.bar,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.want {
            Want::AtMost => "<=",
            Want::AtLeast => ">=",
        };
        let verdict = match (self.judged, self.ok()) {
            (false, _) => "unjudged",
            (true, true) => "ok",
            (true, false) => "SHORT",
        };
        write!(f, "{} {:.3} {sign} {} {verdict}", self.name, self.value, self.bar)
    }
}

/// The figures of one group. Prints each as it comes.
#[derive(Debug)]
pub struct Report {
    group: &'static str,
    judged: bool,
    short: usize,
}

impl Report {
    /// An empty report.
    pub fn new(group: &'static str) -> Self {
        Self { group, judged: true, short: 0 }
    }

    /// The report of a smoke test: figures are printed, none can fall short.
    pub fn unjudged(group: &'static str) -> Self {
        Self { judged: false, ..Self::new(group) }
    }

    /// Hold a value against the most it may be.
    pub fn at_most(&mut self, name: &str, value: f64, bar: f64) {
        self.add(name, value, Want::AtMost, bar);
    }

    /// Hold a value against the least it may be.
    pub fn at_least(&mut self, name: &str, value: f64, bar: f64) {
        self.add(name, value, Want::AtLeast, bar);
    }

    fn add(&mut self, name: &str, value: f64, want: Want, bar: f64) {
        let figure = Figure { name: format!("{}.{name}", self.group), value, want, bar, judged: self.judged };
        self.short += usize::from(self.judged && !figure.ok());
        println!("{figure}");
    }

    /// How many figures fell short.
    pub fn short(&self) -> usize {
        self.short
    }
}

/// Print a detail for a person.
pub fn detail(text: impl fmt::Display) {
    println!("# {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: f64, want: Want, bar: f64) -> String {
        Figure { name: "store.flat".into(), value, want, bar, judged: true }.to_string()
    }

    #[test]
    fn a_figure_is_one_line_with_its_verdict() {
        assert_eq!(figure(1.0523, Want::AtMost, 1.2), "store.flat 1.052 <= 1.2 ok");
        assert_eq!(figure(1.3, Want::AtMost, 1.2), "store.flat 1.300 <= 1.2 SHORT");
        assert_eq!(figure(3.0, Want::AtLeast, 2.5), "store.flat 3.000 >= 2.5 ok");
        assert_eq!(figure(f64::NAN, Want::AtLeast, 2.5), "store.flat NaN >= 2.5 SHORT");
    }
}
