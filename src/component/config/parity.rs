//! What upstream takes the values of the file and of the flags for, and what it refuses, by type. Upstream's kube-proxy 1.36.2 gave the
//! outcomes with `--write-config-to`: some 3,500 generated values, each in one field of the file or in one flag (P1, P2).
//!
//! A table has a value and its meaning with `=>` between them, or values that are refused. `~` stands for a blank.

use std::ffi::OsString;

use serde_json::Value;

use super::file::{KubeProxyConfiguration, decode};
use super::{CommandLine, GoDuration, ProxyArgs};

const HEADER: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

const WHOLE: &str = "5=>5 +5=>5 0=>0 -0=>0 05=>5 010=>8 016=>14 08=>8 09=>9 0o17=>15 0O17=>15 0b11=>3 0B11=>3 0x10=>16 0X1F=>31 +010=>8 \
    1_0=>10 1__0=>10 1_=>1 0x_10=>16 0_8=>8 0_7=>7 0b1_1=>3 1e1=>10 1E1=>10 1e+1=>10 1.0=>1 5.=>5 100e-2=>1 0.5e1=>5 1.e1=>10 0.0=>0 \
    -0.0=>0 !!int~5=>5 !!int~\"5\"=>5 !!int~'010'=>8 !!float~5=>5";
const LARGE_OR_NEGATIVE: &str = "0400000=>131072 1_000=>1000 32768.0=>32768 1.048576e+06=>1048576 12e03=>12000 2147483647=>2147483647 -5=>-5 \
    -5.0=>-5 -0x10=>-16 -010=>-8 -0b11=>-3 -0o17=>-15 -2147483648=>-2147483648";
const NOT_WHOLE: &str = "_1 .5 5.5 -5.5 1e-2 1e10 1e20 1e400 4294967296 18446744073709551616 99999999999999999999999 .inf -.inf \
    .nan inf nan +inf 1:30 0x 0b2 0o8 0xg 5a 1e e5 + . true yes off n \"5\" '5' \"0x10\" \"1e2\" \"\" '010' !!float~5.5 !!str~5 !foo~5 !~5 [] \
    {} [5] 2026-01-01 +.5 1_0.5 ._5 0x1p4";
const FRACTIONS: &str =
    "5.5=>5.5 .5=>0.5 -.5=>-0.5 +1.5=>1.5 1_0.5=>10.5 1e-2=>0.01 0.1=>0.1 !!float~5.5=>5.5 5e-1=>0.5";
const BOOLEANS: &str = "true=>true True=>true TRUE=>true yes=>true Yes=>true YES=>true on=>true On=>true ON=>true y=>true Y=>true \
    !!bool~\"true\"=>true false=>false False=>false FALSE=>false no=>false No=>false NO=>false off=>false Off=>false OFF=>false n=>false \
    N=>false !!bool~no=>false";
const NOT_BOOLEANS: &str = "0 1 5 1e2 tRUE yEs t f T F \"yes\" 'true' \"\" !!str~yes [] {} [true]";
const TEXTS: &str = "_1=>_1 1e400=>1e400 inf=>inf 1:30=>1:30 190:20:30=>190:20:30 0x=>0x 0b2=>0b2 0o8=>0o8 5a=>5a 1e=>1e e5=>e5 +=>+ .=>. \
    tRUE=>tRUE yEs=>yEs t=>t nULL=>nULL \"5\"=>5 '5'=>5 \"0x10\"=>0x10 \"yes\"=>yes 'true'=>true 'null'=>null !!str~5=>5 !!str~yes=>yes \
    !foo~5=>5 !~5=>5 2026-01-01=>2026-01-01 ._5=>._5 0x1p4=>0x1p4";
const NOT_TEXTS: &str =
    "5 +5 -0 05 010 08 0o17 0x10 1_000 1e2 1.0 5. .5 5.5 true False yes NO on Off y N !!int~\"5\" !!bool~yes [] {} [5]";
const DURATIONS: &str =
    "5s=>5s \"5s\"=>5s 1m30s=>1m30s 1.5h=>1h30m0s 100ms=>100ms +1s=>1s 1us=>1µs 1µs=>1µs .5s=>500ms";
const NOT_DURATIONS: &str = "1d 1_0s 0x5s \"\" yes 1.5 [] {}";
const QUANTITIES: &str = "0=>0 5=>5 64Ki=>64Ki \"64Ki\"=>64Ki 1k=>1k 1e3=>1000 \"1e3\"=>1e3 \"1E3\"=>1E3 \"1e-3\"=>1e-3 1.5=>1.5 1500m=>1500m \
    0x10=>16 010=>8 \"010\"=>010 1_000=>1000 -1=>-1 \"+1\"=>+1 1.5Ki=>1.5Ki 5.=>5 .5=>0.5 1E=>1E 12e6=>12000000 \"~5~\"=>5 1n=>1n";
const NOT_QUANTITIES: &str = "1K \"\" yes \"1e\" 1e3Ki \"--1\" [] {}";

/// Fields that take a few words, of this program alone.
const WORDS: [&str; 6] = ["counters", "flowtable", "rulesetLayout", "scheduler", "schedulerHash", "tableOwnership"];

fn entries(table: &str) -> impl Iterator<Item = String> {
    table.split_whitespace().map(|entry| entry.replace('~', " "))
}

fn pairs(table: &str) -> Vec<(String, String)> {
    entries(table).map(|entry| entry.split_once("=>").map(|(value, is)| (value.into(), is.into())).unwrap()).collect()
}

/// What a field is when the file has `value` in it, as text.
fn read(pointer: &str, value: &str) -> Result<String, String> {
    let names: Vec<_> = pointer.split('/').skip(1).collect();
    let body = names.iter().rev().fold(value.to_owned(), |body, name| format!("{{{name}: {body}}}"));
    let body = body.strip_prefix('{').and_then(|body| body.strip_suffix('}')).unwrap();
    let mode = if pointer == "/mode" { "" } else { "mode: nftables\n" };
    let config = decode(&format!("{HEADER}{mode}{body}\n")).map_err(|error| error.to_string())?.config;
    let field = serde_json::to_value(config).unwrap().pointer(pointer).unwrap().clone();
    Ok(field.as_str().map_or_else(|| field.to_string(), str::to_owned))
}

/// Checks a type of field: each of `fields` takes the values of `taken`, where 0 may stand for a default, and refuses those of `refused`.
fn check(fields: &[(String, Value)], taken: &[&str], refused: &str) {
    assert!(!fields.is_empty());
    for (field, default) in fields {
        for (value, meaning) in taken.iter().flat_map(|table| pairs(table)) {
            let found = read(field, &value).unwrap_or_else(|error| panic!("{field} refuses {value}: {error}"));
            let same = |text: &str| found == text || found.parse::<f32>().is_ok_and(|found| text.parse() == Ok(found));
            assert!(same(&meaning) || meaning == "0" && same(&default.to_string()), "{field}: {value} is {found}");
        }
        for value in entries(refused) {
            let error = read(field, &value).err().unwrap_or_else(|| panic!("{field} takes {value}"));
            let path = field[1..].replace('/', ".");
            assert!(error.starts_with(&path), "{field}: {value}: {error}");
        }
        let unset = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
        for null in ["null", "Null", "NULL", "~", ""] {
            assert_eq!(read(field, null).as_ref(), Ok(&unset), "{field}: {null}");
        }
    }
}

/// The fields of the file, with the default of each.
fn fields() -> Vec<(String, Value)> {
    fn collect(pointer: &str, value: &Value, found: &mut Vec<(String, Value)>) {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                fields.iter().for_each(|(name, value)| collect(&format!("{pointer}/{name}"), value, found));
            }
            value => found.push((pointer.to_owned(), value.clone())),
        }
    }
    let mut all = Vec::new();
    collect("", &serde_json::to_value(KubeProxyConfiguration::default()).unwrap(), &mut all);
    let is_typed = |pointer: &str| {
        !["/apiVersion", "/kind"].contains(&pointer) && !WORDS.iter().any(|word| pointer.ends_with(word))
    };
    all.retain(|(pointer, _)| is_typed(pointer));
    all
}

fn of_type(is_of_type: impl Fn(&str, &Value) -> bool) -> Vec<(String, Value)> {
    fields().into_iter().filter(|(pointer, default)| is_of_type(pointer, default)).collect()
}

fn is_duration(default: &Value) -> bool {
    default.as_str().is_some_and(|text| text != "0" && text.parse::<GoDuration>().is_ok())
}

// Values of the file are read as by upstream (P2).
#[test]
fn whole_numbers_of_the_file_are_those_of_upstream() {
    let is_signed = |pointer: &str| pointer != "/logging/verbosity";
    check(&of_type(|_, default| default.is_i64()), &[WHOLE], NOT_WHOLE);
    check(
        &of_type(|pointer, default| default.is_i64() && is_signed(pointer)),
        &[LARGE_OR_NEGATIVE],
        "2147483648 -2147483649",
    );
    check(&of_type(|_, default| default.is_f64()), &[WHOLE, FRACTIONS], "_1 inf .inf 5a 0x1p4 \"5\" '' yes [] {}");
}

#[test]
fn booleans_of_the_file_are_those_of_upstream() {
    let gate = ("/featureGates/ComponentFlagz".to_owned(), Value::Null);
    check(&of_type(|_, default| default.is_boolean()), &[BOOLEANS], NOT_BOOLEANS);
    for (value, meaning) in pairs(BOOLEANS) {
        assert_eq!(read(&gate.0, &value), Ok(meaning), "{value}");
    }
    assert_eq!(read(&gate.0, "null").as_deref(), Ok("false"));
    assert!(entries(NOT_BOOLEANS).all(|value| read(&gate.0, &value).is_err()));
}

#[test]
fn texts_of_the_file_are_those_of_upstream() {
    let is_text = |pointer: &str, default: &Value| {
        default.is_string() && !is_duration(default) && !pointer.ends_with("infoBufferSize")
    };
    check(&of_type(is_text), &[TEXTS], NOT_TEXTS);
    check(&of_type(|_, default| is_duration(default)), &[DURATIONS], NOT_DURATIONS);
    check(&of_type(|pointer, _| pointer.ends_with("infoBufferSize")), &[QUANTITIES], NOT_QUANTITIES);
    // Only this field of upstream's takes a number of nanoseconds.
    check(
        &of_type(|pointer, _| pointer.ends_with("flushFrequency")),
        &["5000000000=>5s 5e9=>5s 1e9=>1s 0x10=>16ns"],
        "",
    );
}

#[test]
fn lists_of_the_file_are_those_of_upstream() {
    for (field, _) in of_type(|_, default| default.is_array()) {
        for value in ["[]", "null", "~", ""] {
            assert_eq!(read(&field, value).as_deref(), Ok("[]"), "{field}: {value}");
        }
        for value in ["a", "5", "yes", "\"10.0.0.0/8\"", "{}", "[5]", "[yes]", "[null]"] {
            assert!(read(&field, value).is_err(), "{field}: {value}");
        }
    }
    assert_eq!(
        read("/nodePortAddresses", "[primary, '5', 10.0.0.0/8]").as_deref(),
        Ok(r#"["primary","5","10.0.0.0/8"]"#)
    );
}

// The words that only this program has may be what YAML 1.1 makes of them.
#[test]
fn the_word_off_may_be_the_boolean_that_helm_prints() {
    for field in ["counters", "flowtable", "tableOwnership"] {
        for value in ["off", "Off", "false", "no", "'off'"] {
            assert_eq!(read(&format!("/nftables/{field}"), value).as_deref(), Ok("off"), "{field}: {value}");
        }
        assert!(read(&format!("/nftables/{field}"), "true").is_err());
    }
}

/// What flags make of the configuration.
fn flags(args: &[&str]) -> Result<Value, String> {
    let args = ["kube-proxy", "--hostname-override=n"].iter().chain(args).map(OsString::from);
    let line = CommandLine::of_running(args, |_| unreachable!()).map_err(|error| error.to_string())?;
    let config = ProxyArgs::default().config_beside(&line).map_err(|error| error.to_string())?;
    let page: Value = serde_json::from_str(&config.configz).unwrap();
    Ok(page["kubeproxy.config.k8s.io"].clone())
}

/// A flag with a value, as upstream was started with it.
fn flag(name: &str, value: &str) -> Result<Value, String> {
    flags(&["--proxy-mode=nftables", "--feature-gates=LoggingAlphaOptions=true", &format!("--{name}={value}")])
}

// Values of flags are those of Go (P1).
#[test]
fn values_of_flags_are_those_of_upstream() {
    const WHOLE: &str = "5=>5 +5=>5 0=>0 -0=>0 010=>8 0o17=>15 0b11=>3 0x10=>16 0X1F=>31 0x_10=>16 0_7=>7 00=>0";
    const NOT_WHOLE: &str = "08 1__000 _1 1_ 0_8 0_ 1e2 1.0 5.5 2147483648 yes 1,000 0x 0b ~5 5~ ٣ \"5\"";
    const LEVELS: &str = "5=>5 0=>0 010=>10 08=>8 00=>0 2147483647=>2147483647";
    const FLOATS: &str =
        "5=>5 +5=>5 -5=>-5 010=>10 08=>8 1_000=>1000 5.5=>5.5 .5=>0.5 5.=>5 1e3=>1000 1_0.5=>10.5 +.5=>0.5";
    const BOOLEANS: &str =
        "true=>true True=>true TRUE=>true t=>true T=>true 1=>true false=>false f=>false F=>false 0=>false";
    const LISTS: &str = "10.0.0.0/8=>[\"10.0.0.0/8\"] \"10.0.0.0/8\"=>[\"10.0.0.0/8\"] primary=>[\"primary\"]
        10.0.0.0/8,fd00::/8=>[\"10.0.0.0/8\",\"fd00::/8\"] \"10.0.0.0/8\",\"fd00::/8\"=>[\"10.0.0.0/8\",\"fd00::/8\"]";
    const QUANTITIES: &str =
        "5=>5 64Ki=>64Ki 1k=>1k 1e3=>1e3 1E3=>1E3 1e-3=>1e-3 010=>010 -1=>-1 +1=>+1 5.=>5. 1E=>1E 12e6=>12e6";
    const SOCKETS: &str = "1.2.3.4:80=>1.2.3.4:80 010.2.3.4=>10.2.3.4:10249 [::1]:80=>[::1]:80 ::1=>[::1]:10249";
    for (name, pointer, taken, refused) in [
        ("conntrack-min", "/conntrack/min", WHOLE, NOT_WHOLE),
        ("oom-score-adj", "/oomScoreAdj", WHOLE, NOT_WHOLE),
        ("oom-score-adj", "/oomScoreAdj", "-5=>-5 -0x10=>-16 -1_0=>-10 1_000=>1000", "1001"),
        ("iptables-masquerade-bit", "/iptables/masqueradeBit", WHOLE, NOT_WHOLE),
        ("v", "/logging/verbosity", LEVELS, "-5 0x10 1_000 1e2 2147483648 yes"),
        ("kube-api-qps", "/clientConnection/qps", FLOATS, "0x 5a yes 1,000 ~5"),
        ("profiling", "/enableProfiling", BOOLEANS, "tRUE yes no on off y n 2 ~true"),
        (
            "conntrack-udp-timeout",
            "/conntrack/udpTimeout",
            "5s=>5s 1m30s=>1m30s +1s=>1s .5s=>500ms 1us=>1µs 1.5h=>1h30m0s 0=>0s",
            "5 -1s 1h1 1d 1_0s",
        ),
        (
            "nodeport-addresses",
            "/nodePortAddresses",
            LISTS,
            "\"10.0.0.0/8,fd00::/8\" 10.0.0.0/8, ~10.0.0.0/8 a\"b , \"\"",
        ),
        (
            "metrics-bind-address",
            "/metricsBindAddress",
            SOCKETS,
            "1.2.3.4:0 1.2.3.4:99999 localhost:80 :80 1.2.3.4: [::1]",
        ),
        ("bind-address", "/bindAddress", "1.2.3.4=>1.2.3.4 010.2.3.4=>010.2.3.4 ::1=>::1", "host ~1.2.3.4 1.2.3.4:80"),
        ("log-json-info-buffer-size", "/logging/options/json/infoBufferSize", QUANTITIES, "1K 0x10 1_000 1e 1e3Ki ~5"),
        (
            "feature-gates",
            "/featureGates/a",
            "a=true=>true a=1=>true a=true,=>true ~a~=~true~=>true",
            "a=yes a a=true=x",
        ),
    ] {
        for (value, meaning) in pairs(taken) {
            let found = flag(name, &value).unwrap_or_else(|error| panic!("--{name} refuses {value}: {error}"));
            let found = found.pointer(pointer).unwrap_or_else(|| panic!("{name} {value}: {found}"));
            let found = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
            let number = |text: &str| text.parse::<f32>().ok();
            let same = found == meaning || number(&found).is_some_and(|found| number(&meaning) == Some(found));
            assert!(same, "--{name}={value} is {found}");
        }
        for value in entries(refused) {
            assert!(flag(name, &value).is_err(), "--{name} takes {value}");
        }
    }
}

// Empty arguments are ignored (P1).
#[test]
fn empty_arguments_are_ignored_as_upstream_does_unless_they_are_values() {
    let plain = flags(&["--v=2"]).unwrap();
    for args in [&["", "--v=2"][..], &["--v=2", ""], &["", "", "--v=2", ""], &["--v=1", "", "-v", "2"]] {
        assert_eq!(flags(args).as_ref(), Ok(&plain), "{args:?}");
    }
    let with_value = flags(&["--kubeconfig", "", "--profiling", "", "--cluster-cidr", "10.0.0.0/8"]).unwrap();
    assert_eq!((&with_value["enableProfiling"], &with_value["clusterCIDR"]), (&true.into(), &"10.0.0.0/8".into()));
    for args in [&["-v", ""][..], &["--profiling", "false"], &[" "], &["-"], &["--profiling="], &["-proxy-mode=ipvs"]] {
        assert!(flags(args).is_err(), "{args:?}");
    }
}
