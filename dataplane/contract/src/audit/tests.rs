use proptest::prelude::*;

use super::*;

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).expect("a tenant")
}

fn entry(of: &str, object: &str) -> AuditEntry {
    AuditEntry {
        tenant: tenant(of),
        stamp: Stamp { at_ms: 7, source: Some("10.0.0.1".to_owned()), ..Stamp::default() },
        actor: AuditEntry::user(&Actor { tenant: tenant(of), username: Username::parse("ann").expect("a name"), checked: None }),
        action: "create_topic",
        object: object.to_owned(),
        detail: None,
    }
}

fn trail(of: &str, count: usize) -> AuditTrail {
    (1..=count).fold(AuditTrail::default(), |mut trail, n| {
        trail.push(&entry(of, &format!("topic:t-{n}")), AuditDecision::Allowed, None);
        trail
    })
}

fn lines(trail: &AuditTrail, of: &str) -> Vec<String> {
    trail.after(&tenant(of), AuditKind::Changes, 0).map(|line| String::from(&**line)).collect()
}

fn verify<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Option<Verified>, Broken> {
    let mut verifier = Verifier::default();
    lines.into_iter().try_for_each(|line| verifier.line(line))?;
    Ok(verifier.verified().cloned())
}

fn all(lines: &[String]) -> Result<Option<Verified>, Broken> {
    verify(lines.iter().map(String::as_str))
}

#[test]
fn a_record_keeps_its_form() {
    let mut trail = AuditTrail::default();
    trail.push(&entry("acme", "topic:orders"), AuditDecision::Allowed, None);
    let mut second = entry("acme", "topic:orders");
    second.stamp = Origin::Asked { caller: None, source: Some([10, 0, 0, 1].into()), request: Some(255), key: Some("k1".into()) }
        .stamp(8, &NodeId("n".into()));
    second.detail = AuditEntry::small(&serde_json::json!({ "partitions": 3 }));
    trail.push(&second, AuditDecision::Refused, Some("already_exists"));
    let first = r#"{"seq":1,"at_ms":7,"actor":"user:ann@acme","tenant":"acme","source":"10.0.0.1","action":"create_topic","object":"topic:orders","decision":"allowed","prev":"0000000000000000000000000000000000000000000000000000000000000000"}"#;
    let hash = AuditHash::of(first);
    let second = format!(
        r#"{{"seq":2,"at_ms":8,"actor":"user:ann@acme","tenant":"acme","source":"10.0.0.1","request":"00000000000000ff","key":"k1","action":"create_topic","object":"topic:orders","decision":"refused","reason":"already_exists","detail":{{"partitions":3}},"prev":"{hash}"}}"#
    );
    let sealed = |body: &str| format!(r#"{},"hash":"{}"}}"#, body.strip_suffix('}').expect("an object"), AuditHash::of(body));
    assert_eq!(lines(&trail, "acme"), [sealed(first), sealed(&second)]);
}

#[test]
fn the_hash_is_sha_256() {
    let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(AuditHash::of("abc").to_string(), of_abc);
    assert_eq!(of_abc.parse(), Ok(AuditHash::of("abc")));
    for text in ["", "abc", &of_abc[1..], &of_abc.to_uppercase()] {
        assert_eq!(text.parse::<AuditHash>(), Err(InvalidAuditHash), "{text}");
    }
}

#[test]
fn a_whole_chain_is_good_and_says_where_it_begins() {
    let lines = lines(&trail("acme", 9), "acme");
    let good = all(&lines).expect("good").expect("some");
    assert_eq!((good.tenant.to_string(), good.first, good.last), ("acme".to_owned(), 1, 9));
    let cut = all(&lines[4..]).expect("good").expect("some");
    assert_eq!((cut.first, cut.last, cut.head), (5, 9, good.head));
    assert_eq!(verify([]), Ok(None));
}

#[test]
fn the_first_record_that_is_not_there_is_named() {
    let whole = lines(&trail("acme", 9), "acme");
    for at in 1..8 {
        let seq = at as u64 + 1;
        let dropped: Vec<String> = whole.iter().enumerate().filter(|(n, _)| *n != at).map(|(_, line)| line.clone()).collect();
        assert_eq!(all(&dropped).expect_err("one is missing").seq, seq);
        let mut turned = whole.clone();
        turned.swap(at, at + 1);
        assert_eq!(all(&turned).expect_err("two are turned").seq, seq);
        let mut twice = whole.clone();
        twice.insert(at, whole[at - 1].clone());
        assert_eq!(all(&twice).expect_err("one stands twice").seq, seq);
    }
    let foreign = lines(&trail("other", 9), "other");
    let mixed = [&whole[..3], &foreign[3..]].concat();
    assert_eq!(all(&mixed).expect_err("another tenant's").seq, 4);
}

#[test]
fn a_line_that_was_written_anew_with_a_hash_of_its_own_does_not_fit() {
    let mut whole = lines(&trail("acme", 5), "acme");
    let body = parted_body(&whole[2]).replace("t-3", "t-4");
    whole[2] = verify::sealed(&body, AuditHash::of(&body));
    assert_eq!(all(&whole).expect_err("the next one names another").seq, 4);
    let body = parted_body(&whole[0]).replace("0000", "0001");
    whole[0] = verify::sealed(&body, AuditHash::of(&body));
    assert_eq!(all(&whole).expect_err("the first has none before it").seq, 1);
}

fn parted_body(line: &str) -> String {
    format!("{}}}", line.rsplit_once(r#","hash":""#).expect("a hash").0)
}

#[test]
fn a_name_cannot_forge_a_line() {
    let mut trail = AuditTrail::default();
    let forged = "node:a\r\n{\"seq\":2,\"actor\":\"user:eve@acme\"}\u{0}\u{1b}[2K\u{7f}\",\"hash\":\"00\"}";
    trail.push(&entry("acme", forged), AuditDecision::Refused, Some(forged));
    trail.push(&entry("acme", "topic:t"), AuditDecision::Allowed, None);
    let lines = lines(&trail, "acme");
    assert!(lines.iter().all(|line| !line.chars().any(|c| c < ' ')), "{lines:?}");
    let told: serde_json::Value = serde_json::from_str(&lines[0]).expect("JSON");
    assert_eq!((told["object"].as_str(), told["seq"].as_u64()), (Some(forged), Some(1)));
    assert_eq!(verify(lines.join("\n").lines()).expect("good").expect("some").last, 2);
}

#[test]
fn whoever_has_most_records_loses_the_oldest_and_what_is_left_is_still_a_chain() {
    let mut trail = trail("quiet", 3);
    for n in 0..limits::AUDIT_RECORDS_MAX + 50 {
        trail.push(&entry(if n % 3 == 0 { "busy" } else { "busier" }, "topic:t"), AuditDecision::Allowed, None);
    }
    assert_eq!(trail.records, limits::AUDIT_RECORDS_MAX);
    assert_eq!(lines(&trail, "quiet").len(), 3, "who does little keeps all of it");
    assert_eq!(lines(&trail, "busy").len(), (limits::AUDIT_RECORDS_MAX + 50).div_ceil(3));
    let busier = all(&lines(&trail, "busier")).expect("good").expect("some");
    assert!(busier.first > 1 && busier.head == trail.chains[&(tenant("busier"), AuditKind::Changes)].head, "{busier:?}");
    let oldest: serde_json::Value = serde_json::from_str(&lines(&trail, "busier")[0]).expect("JSON");
    assert_eq!(oldest["prev"], trail.chains[&(tenant("busier"), AuditKind::Changes)].before.to_string());
    let from = |after| trail.after(&tenant("busier"), AuditKind::Changes, after).count() as u64;
    assert_eq!((from(0), from(busier.first - 1), from(busier.first)), (from(0), from(0), from(0) - 1));
    assert_eq!((from(busier.last - 1), from(busier.last), from(u64::MAX)), (1, 0, 0));
}

#[test]
fn whoever_is_denied_again_and_again_pushes_out_no_change() {
    let mut trail = trail("acme", 300);
    let denied = AuditEntry { action: AuditEntry::DENIALS, ..entry("acme", "node:n") };
    for _ in 0..limits::AUDIT_RECORDS_MAX + 50 {
        trail.push(&denied, AuditDecision::Refused, None);
    }
    assert_eq!((trail.records, lines(&trail, "acme").len()), (limits::AUDIT_RECORDS_MAX, 300));
    let mut verifier = Verifier::default();
    trail.after(&tenant("acme"), AuditKind::Denials, 0).try_for_each(|line| verifier.line(line)).expect("a chain of its own");
    assert_eq!(verifier.verified().map(|good| (good.first, good.last)), Some((351, limits::AUDIT_RECORDS_MAX as u64 + 50)));
    trail.forget(&tenant("acme"));
    assert_eq!((trail.is_empty(), trail.records, trail.bytes, trail.by_count.len(), trail.by_bytes.len()), (true, 0, 0, 0, 0));
}

#[test]
fn large_records_are_bounded_together_too() {
    let mut trail = AuditTrail::default();
    let object = "x".repeat(limits::AUDIT_BYTES_MAX / 100);
    for _ in 0..200 {
        trail.push(&entry("acme", &object), AuditDecision::Allowed, None);
    }
    assert!(trail.bytes <= limits::AUDIT_BYTES_MAX && trail.records > 90);
    assert_eq!(trail.bytes, lines(&trail, "acme").iter().map(String::len).sum::<usize>());
    trail.forget(&tenant("acme"));
    assert_eq!((trail.is_empty(), trail.records, trail.bytes, trail.by_count.len(), trail.by_bytes.len()), (true, 0, 0, 0, 0));
}

#[test]
fn whoever_writes_few_large_records_pushes_out_none_of_many_small_ones() {
    let mut trail = trail("quiet", 200);
    let large = "x".repeat(limits::AUDIT_BYTES_MAX / 100);
    for _ in 0..300 {
        trail.push(&entry("busy", &large), AuditDecision::Allowed, None);
    }
    assert!(trail.bytes <= limits::AUDIT_BYTES_MAX);
    assert_eq!(all(&lines(&trail, "quiet")).expect("good").map(|good| (good.first, good.last)), Some((1, 200)));
    let busy = all(&lines(&trail, "busy")).expect("good").expect("some");
    assert!(busy.first > 200 && busy.last == 300, "{busy:?}");
    // What was written down before, of whatever sizes, is bounded the same.
    let mut again = AuditTrail::from_dump(trail.dump().collect());
    again.push(&entry("busy", &large), AuditDecision::Allowed, None);
    assert_eq!((lines(&again, "quiet").len(), lines(&again, "busy").len()), (200, lines(&trail, "busy").len()));
}

#[test]
fn what_is_large_is_told_by_its_hash() {
    let large = serde_json::json!({ "patterns": "x".repeat(limits::AUDIT_DETAIL_BYTES_MAX) });
    let told = AuditEntry::small(&large).expect("a value");
    let hash = AuditHash::of(&large.to_string());
    assert_eq!(told.get(), format!(r#"{{"bytes":{},"sha256":"{hash}"}}"#, large.to_string().len()));
    assert!(AuditEntry::small(&serde_json::json!({})).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_byte_that_is_changed_is_noticed_at_its_record(count in 1_usize..6, at in any::<prop::sample::Index>(), bit in 0_u32..7) {
        let whole = lines(&trail("acme", count), "acme");
        let mut text = whole.join("\n").into_bytes();
        text.push(b'\n');
        let at = at.index(text.len());
        let seq = text[..at].iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
        text[at] ^= 1 << bit;
        let text = String::from_utf8(text).expect("still ASCII");
        let broken = verify(text.split_terminator('\n')).expect_err("changed");
        // Of the first line nobody knows which it should be.
        prop_assert!(broken.line == seq && (seq == 1 || broken.seq == seq), "{broken:?} and not {seq}");
    }

    #[test]
    fn a_trail_is_the_same_after_it_was_written_down(pushes in proptest::collection::vec((0_u8..4, "[ -~]{0,20}"), 0..60)) {
        let trail = pushes.iter().fold(AuditTrail::default(), |mut trail, (of, object)| {
            trail.push(&entry(&format!("t{of}"), object), AuditDecision::Allowed, None);
            trail
        });
        let text = serde_json::to_string(&trail.dump().collect::<Vec<_>>()).expect("written");
        let mut again = AuditTrail::from_dump(serde_json::from_str(&text).expect("read"));
        let (mut trail, more) = (trail, entry("t1", "topic:more"));
        for side in [&mut trail, &mut again] {
            side.push(&more, AuditDecision::Refused, Some("why"));
        }
        let text = |trail: &AuditTrail| serde_json::to_string(&trail.dump().collect::<Vec<_>>()).expect("written");
        prop_assert_eq!(text(&trail), text(&again));
        prop_assert_eq!((trail.records, trail.bytes), (again.records, again.bytes));
        prop_assert_eq!((trail.by_count, trail.by_bytes), (again.by_count, again.by_bytes));
    }
}
