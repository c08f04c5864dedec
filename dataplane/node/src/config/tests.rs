use super::*;

fn load(file: Option<&str>, env: &[(&str, &str)], flags: &Flags) -> Result<Config, ConfigError> {
    let env = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    Config::load(Config::default(), file, env, flags)
}

#[test]
fn the_built_in_values_are_valid() {
    assert_eq!(load(None, &[], &Flags::default()), Ok(Config::default()));
    assert_eq!(load(Some("{}"), &[], &Flags::default()), Ok(Config::default()));
}

#[test]
fn a_later_source_wins() {
    let file = r#"{"http":{"addr":":1","read_timeout":"3s"},"storage":{"data_dir":"from-file","codec":"zstd"}}"#;
    let env = [("VEENA_HTTP_ADDR", ":2"), ("VEENA_DATA_DIR", "from-env")];
    let flags = Flags::default().with("storage.data_dir", Some("from-flag")).with("http.port", Some(9));
    let config = load(Some(file), &env, &flags).expect("valid");
    assert_eq!(config.http.addr, ":9");
    assert_eq!(config.http.read_timeout, Duration::from_secs(3));
    assert_eq!(config.storage.data_dir, PathBuf::from("from-flag"));
    assert_eq!(config.storage.codec, CodecChoice::Zstd);
}

#[test]
fn every_error_is_reported_at_once() {
    let file = r#"{"http":{"read_timeout":10,"colour":"red"},"broker":{},"log":{"level":"loud"},"topic":{"max_partitions":0}}"#;
    let env = [("VEENA_FANOUT_LINGER_MS", "-1"), ("VEENA_HTTP_ADDR", "junk")];
    let error = load(Some(file), &env, &Flags::default().with("http.port", Some("x"))).expect_err("refused");
    let text = error.to_string();
    assert!(text.starts_with("config: "), "{text}");
    let parts = [
        "http.read_timeout: want a duration as text, like \"10s\", not 10",
        "unknown key http.colour",
        "unknown key broker",
        "log.level: want one of debug, info, warn, error, not \"loud\"",
        "topic.max_partitions must be above 0",
        "http.addr \"junk\": want host:port",
        "VEENA_FANOUT_LINGER_MS: want a whole number from 0",
        "--port: want a whole number from 0, not \"x\"",
    ];
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn security_is_on_unless_somebody_says_that_it_is_off() {
    let is_enabled = |file: &str| load(Some(file), &[], &Flags::default()).expect("valid").security.enabled;
    assert!(is_enabled("{}") && is_enabled(r#"{"security":{"enabled":true}}"#) && !is_enabled(r#"{"security":{"enabled":false}}"#));
}

#[test]
fn the_first_password_comes_from_the_environment_alone_and_is_not_shown() {
    let config = load(None, &[("VEENA_ADMIN_PASSWORD", "hunter2")], &Flags::default()).expect("valid");
    assert_eq!(config.security.admin_password.as_ref().map(AdminPassword::expose), Some("hunter2"));
    assert!(!format!("{config:?}").contains("hunter2"));
    for (file, env) in [(r#"{"security":{"admin_password":"hunter2"}}"#, ""), ("{}", &*"hunter2".repeat(11))] {
        let env: &[_] = if env.is_empty() { &[] } else { &[("VEENA_ADMIN_PASSWORD", env)] };
        let text = load(Some(file), env, &Flags::default()).expect_err("refused").to_string();
        assert!(text.contains("password") && !text.contains("hunter2"), "{text}");
    }
}

#[test]
fn tls_takes_a_certificate_and_its_key() {
    let file = r#"{"http":{"tls":{"cert_file":"c.pem","key_file":"from-file"}}}"#;
    let tls = load(Some(file), &[("VEENA_HTTP_TLS_KEY_FILE", "k.pem")], &Flags::default()).expect("valid").http.tls;
    assert_eq!(tls, TlsConfig { cert_file: Some("c.pem".into()), key_file: Some("k.pem".into()) });
    for (file, text) in [
        (r#"{"http":{"tls":{"cert_file":"c"}}}"#, "http.tls.cert_file is set and http.tls.key_file is not"),
        (r#"{"http":{"tls":{"key_file":"k"}}}"#, "http.tls.key_file is set and http.tls.cert_file is not"),
        (r#"{"http":{"tls":{"key":"k"}}}"#, "unknown key http.tls.key"),
        (r#"{"http":{"tls":"k"}}"#, "http.tls: want an object"),
        (r#"{"http":{"addr":{"cert_file":"c"}}}"#, "http.addr: want text"),
        (r#"{"http":{"tls.cert_file":"c"}}"#, "http.tls.cert_file is set and http.tls.key_file is not"),
    ] {
        let error = load(Some(file), &[], &Flags::default()).expect_err("refused");
        assert!(error.0.len() == 1 && error.0[0].contains(text), "{file}: {error}");
    }
}

#[test]
fn waits_must_fit_into_the_timeouts_around_them() {
    let error = load(Some(r#"{"http":{"max_consume_wait":"40s"}}"#), &[], &Flags::default()).expect_err("refused");
    assert_eq!(error.0.len(), 2, "{error}");
}

#[test]
fn a_file_that_is_not_an_object_is_refused() {
    for text in ["", "[]", "{", "1", r#"{"http":1}"#, "{} {}"] {
        assert!(load(Some(text), &[], &Flags::default()).is_err(), "{text:?}");
    }
}

#[test]
fn keys_are_named_once_and_their_variables_follow_them() {
    let mut paths: Vec<_> = KEYS.iter().map(|key| key.path).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), KEYS.len());
    assert!(KEYS.iter().all(|key| key.env.is_none_or(|name| name.starts_with("VEENA_"))));
}

/// Run with `UPDATE_REFERENCE=1` to write the page anew.
#[test]
#[expect(clippy::disallowed_methods, reason = "the test writes a page of the documentation")]
fn the_reference_page_says_what_the_table_of_keys_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/configuration.md");
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(path, reference()).expect("written");
    }
    let page = std::fs::read_to_string(path).expect("the page exists");
    assert!(page == reference(), "docs/operate/configuration.md is not what the table of keys says; run this test with UPDATE_REFERENCE=1");
}

#[test]
fn a_shown_value_is_read_back() {
    let config = Config::default();
    // Some have no value unless one is set, and one is no setting yet.
    for key in KEYS.iter().filter(|key| !(key.show)(&config).is_empty() && key.path != "security.enabled") {
        let mut again = Config::default();
        (key.set)(&mut again, &Raw::Text(&(key.show)(&config))).expect(key.path);
        assert_eq!(again, config, "{}", key.path);
    }
}

const SECRET: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn a_node_of_a_cluster_is_set_up_by_a_file_or_by_variables() {
    let file = r#"{"cluster":{"node_id":"a","peer_addr":"10.0.0.1:7942","secret_file":"/run/secret","join":["b@10.0.0.2:7942","c@h:1"]}}"#;
    let from_file = load(Some(file), &[], &Flags::default()).expect("valid").cluster;
    assert_eq!((from_file.advertised(), from_file.bootstrap, from_file.join.len()), (Some("10.0.0.1:7942"), false, 2));
    assert_eq!((&*from_file.join[1].node.0, &*from_file.join[1].addr), ("c", "h:1"));
    let env = [
        ("VEENA_NODE_ID", "a"),
        ("VEENA_CLUSTER_PEER_ADDR", ":7942"),
        ("VEENA_CLUSTER_ADVERTISE_ADDR", "a.example:7942"),
        ("VEENA_CLUSTER_SECRET", SECRET),
        ("VEENA_CLUSTER_JOIN", "b@10.0.0.2:7942, c@h:1"),
    ];
    let from_env = load(None, &env, &Flags::default()).expect("valid");
    assert_eq!((from_env.cluster.advertised(), &from_env.cluster.join), (Some("a.example:7942"), &from_file.join));
    assert!(!format!("{from_env:?}").contains(SECRET));
}

#[test]
fn half_a_cluster_is_refused_and_said_how_to_complete() {
    let told = |env: &[(&str, &str)]| load(None, env, &Flags::default()).expect_err("refused").to_string();
    let alone = told(&[("VEENA_CLUSTER_SECRET", SECRET), ("VEENA_CLUSTER_BOOTSTRAP", "true"), ("VEENA_CLUSTER_JOIN", "b@h:1")]);
    for key in ["cluster.secret is set", "cluster.bootstrap is set", "cluster.join is set"] {
        assert!(alone.contains(key), "{alone}");
    }
    let bare = told(&[("VEENA_CLUSTER_PEER_ADDR", "0.0.0.0:7942")]);
    for part in ["set cluster.advertise_addr", "cluster.secret_file or VEENA_CLUSTER_SECRET"] {
        assert!(bare.contains(part), "{part:?} is not in {bare:?}");
    }
    let unnamed = [("VEENA_CLUSTER_PEER_ADDR", "h:1"), ("VEENA_CLUSTER_SECRET", SECRET)];
    let unnamed = load(None, &unnamed, &Flags::default()).expect("the directory may know the name");
    assert_eq!(unnamed.clone().named(|_| Some("kept".to_owned())).expect("named").node_id.as_deref(), Some("kept"));
    assert!(unnamed.named(|_| None).expect_err("no name").to_string().contains("--node-id"));
    let node = [("VEENA_NODE_ID", "a"), ("VEENA_CLUSTER_PEER_ADDR", "h:1")];
    let with = |more: &[(&'static str, &'static str)]| told(&[&node[..], more].concat());
    let twice = [("VEENA_CLUSTER_SECRET", SECRET), ("VEENA_CLUSTER_SECRET_FILE", "f")];
    assert!(with(&twice).contains("one of them is enough"));
    let odd = told(&[("VEENA_NODE_ID", "../x"), ("VEENA_CLUSTER_PEER_ADDR", "h:1"), ("VEENA_CLUSTER_JOIN", "x@y@h:1")]);
    assert!(odd.contains("\"../x\"") && odd.contains("\"x@y\"") && odd.contains("1 to 64 letters"), "{odd}");
    for join in ["b", "b@", "@h:1", "b@h", "b@h:0", "b@:1"] {
        assert!(told(&[("VEENA_CLUSTER_JOIN", join)]).contains("want node@host:port"), "{join}");
    }
    let short = with(&[("VEENA_CLUSTER_SECRET", "hunter2hunter2")]);
    assert!(short.contains("at least 32 characters") && !short.contains("hunter2"), "{short}");
    let in_file =
        load(Some(&format!(r#"{{"cluster":{{"secret":"{SECRET}"}}}}"#)), &[], &Flags::default()).expect_err("refused").to_string();
    assert!(in_file.contains("cluster.secret_file") && !in_file.contains(SECRET), "{in_file}");
}
