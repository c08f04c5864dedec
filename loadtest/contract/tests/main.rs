//! The gate over the table: nothing in the contract's sections goes without a row, and no row without a sentence.

use std::collections::{BTreeMap, BTreeSet};

use veena_loadtest_contract::coverage::{COVERAGE, NOT_ON_ONE_NODE};
use veena_loadtest_contract::table::rows;
use veena_loadtest_contract::{Profile, Row};

#[test]
fn row_names_are_unique_sentences() {
    let rows = rows();
    let mut seen = BTreeSet::new();
    for row in &rows {
        assert!(seen.insert(row.name), "{} is there twice", row.name);
        assert!(
            row.name.contains('_') && row.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
            "{}",
            row.name
        );
        assert!(!row.section.is_empty(), "{} names no section", row.name);
    }
    assert!(rows.len() > 250, "the table has shrunk to {} rows", rows.len());
}

#[test]
fn every_row_compares_something() {
    for row in rows() {
        assert!(row.steps.iter().any(|step| !step.expects().is_empty()), "{} compares nothing", row.name);
    }
}

#[test]
fn every_named_row_exists_and_every_row_is_named() {
    let existing: BTreeSet<_> = rows().iter().map(|row| row.name).collect();
    let named: BTreeSet<_> = COVERAGE.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let unknown: Vec<_> = named.difference(&existing).collect();
    let unnamed: Vec<_> = existing.difference(&named).collect();
    assert!(unknown.is_empty() && unnamed.is_empty(), "no such row: {unknown:#?}\nin no item: {unnamed:#?}");
}

#[test]
fn every_item_has_a_row_and_every_omission_a_reason() {
    let mut items = BTreeSet::new();
    for (item, names) in COVERAGE {
        assert!(items.insert(item), "{item} is there twice");
        assert!(!names.is_empty(), "{item} has no row");
    }
    for (item, reason) in NOT_ON_ONE_NODE {
        assert!(items.insert(item), "{item} is there twice");
        assert!(!reason.is_empty(), "{item} has no reason");
    }
}

#[test]
fn every_quoted_text_is_compared_with_by_a_row_of_its_item() {
    let by_name: BTreeMap<_, Row> = rows().into_iter().map(|row| (row.name, row)).collect();
    for (item, names) in COVERAGE {
        for text in item.split('`').skip(1).step_by(2) {
            let texts = |row: &Row| row.steps.iter().flat_map(|step| step.expects()).any(|e| e.texts().iter().any(|t| t.contains(text)));
            assert!(names.iter().any(|name| texts(&by_name[name])), "no row of {item:?} compares with {text:?}");
        }
    }
}

#[test]
fn every_profile_has_rows() {
    for profile in Profile::ALL {
        assert!(rows().iter().any(|row| row.profile == *profile), "{} has no row", profile.as_str());
    }
}
