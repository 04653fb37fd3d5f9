//! What tokens cost: a table with a date, and prices of one's own over it.

use milepost_models::{Prices, Usage};
use serde_json::json;

fn million() -> Usage {
    Usage { input_tokens: 1_000_000, output_tokens: 1_000_000, ..Usage::default() }
}

fn usd(prices: &Prices, model: &str) -> Option<f64> {
    prices
        .cost(model, &Usage { input_tokens: 100_000, output_tokens: 100_000, ..Usage::default() })
        .map(|cost| cost.usd * 10.0)
}

#[test]
fn a_model_is_found_by_its_name_and_by_its_dated_name_only() {
    let prices = Prices::built_in().unwrap();
    assert_eq!(usd(&prices, "claude-sonnet-5"), Some(12.0));
    assert_eq!(usd(&prices, "claude-sonnet-5-20260630"), Some(12.0));
    assert_eq!(usd(&prices, "anthropic/claude-opus-4-20250514"), Some(90.0));
    assert_eq!(usd(&prices, "gpt-6-sol-2026-09-22"), Some(12.0));
    assert_eq!(usd(&prices, "gpt-5.4-mini"), Some(5.25));
    for unknown in ["claude-sonnet-7", "claude-opus-4-9", "gpt-6", "gpt-6-sol-pro", "llama", ""] {
        assert_eq!(prices.cost(unknown, &million()), None, "{unknown}: an unknown price is not zero");
    }
    assert_eq!(prices.cost("claude-sonnet-5", &million()).unwrap().as_of, "2026-11-05, unchecked");
}

#[test]
fn long_requests_cost_what_long_requests_cost() {
    let prices = Prices::built_in().unwrap();
    let usage = |input_tokens, cache_read_tokens| Usage { input_tokens, cache_read_tokens, ..Usage::default() };
    let short = prices.cost("gpt-6-sol", &usage(72_000, 200_000)).unwrap().usd;
    assert!((short - (0.072 * 2.0 + 0.2 * 0.2)).abs() < 1e-12, "{short}");
    let long = prices.cost("gpt-6-sol", &usage(72_001, 200_000)).unwrap().usd;
    assert!((long - (0.072001 * 4.0 + 0.2 * 0.4)).abs() < 1e-12, "{long}");
}

#[test]
fn own_prices_stand_over_the_built_in_ones() {
    let own = Prices::from_value(
        "prices",
        &json!({"models": {"llama": {"input": 0, "output": 0.5}, "gpt-6-sol": {"input": 1, "output": 1}}}),
    );
    let prices = Prices::built_in().unwrap().overlay(own.unwrap());
    assert_eq!(usd(&prices, "llama"), Some(0.5));
    assert_eq!(usd(&prices, "gpt-6-sol"), Some(2.0));
    assert_eq!(usd(&prices, "claude-sonnet-5"), Some(12.0));
    assert_eq!(prices.cost("llama", &million()).unwrap().as_of, "settings");
    assert_eq!(prices.cost("llama", &million()).unwrap().to_string(), "$0.5000 (prices of settings)");
}

#[test]
fn a_table_that_makes_no_sense_is_refused() {
    for wrong in [
        json!({"models": {"x": {"input": -1, "output": 1}}}),
        json!({"models": {"x": {"input": 1e300, "output": 1}}}),
        json!({"models": {"x": {"output": 1}}}),
        json!({"models": {"x": {"input": 1, "output": 1, "above": {"tokens": 1, "input": -1, "output": 1}}}}),
        json!({"modles": {}}),
        json!(7),
    ] {
        let told = Prices::from_value("prices", &wrong).unwrap_err().to_string();
        assert!(told.starts_with("prices: ") && told.contains("; write "), "{told}");
    }
}
