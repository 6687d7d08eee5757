//! Tests of the decoding of manifest files.

use std::panic::catch_unwind;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::*;

fn objects(content: &Content) -> Vec<String> {
    content.objects.iter().map(|object| word(&object.event)).collect()
}

#[test]
fn all_kinds_are_read_and_others_skipped() {
    let crd = "apiVersion: example.com/v1\nkind: Service\nmetadata: {name: x}\nspec: [odd]\n";
    let text =
        format!("{}---\n{crd}---\n# nothing\n---\napiVersion: v1\nkind: ConfigMap\n", service("web", "10.96.0.1"));
    let found = content("a.yaml", &text);
    assert_eq!(objects(&found), ["+demo/web 10.96.0.1"]);
    assert!(!found.broken && found.problems.is_empty(), "{:?}", found.problems);
}

#[test]
fn a_namespace_defaults() {
    for namespace in ["", ", namespace: ''", ", namespace: null"] {
        let text = service("web", "10.96.0.1").replace(", namespace: demo", namespace);
        assert_eq!(objects(&content("a.yaml", &text)), ["+default/web 10.96.0.1"]);
    }
    let node = content("a.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n");
    assert_eq!(objects(&node), ["+node node-1"]);
}

#[test]
fn a_broken_document_names_its_field_and_spares_the_others() {
    let broken = service("bad", "10.96.0.2").replace("port: 80", "port: x");
    let text = format!("{}---\n{broken}---\n{}", service("a", "10.96.0.1"), service("b", "10.96.0.3"));
    let found = content("examples/web.yaml", &text);
    assert_eq!(objects(&found), ["+demo/a 10.96.0.1", "+demo/b 10.96.0.3"]);
    assert!(found.broken);
    assert_eq!(
        texts(&found.problems),
        ["examples/web.yaml, document 2: spec.ports[0].port: invalid type: string \"x\", expected i32"]
    );
    assert_eq!((found.objects[1].document, found.problems[0].severity), (3, super::super::Severity::Error));
}

#[test]
fn broken_yaml_names_its_line_in_the_file() {
    let text = format!("{}---\na: [1\nb: }}\n---\n{}", service("a", "10.96.0.1"), service("b", "10.96.0.3"));
    let found = content("a.yaml", &text);
    assert_eq!(objects(&found), ["+demo/a 10.96.0.1", "+demo/b 10.96.0.3"]);
    let problems = texts(&found.problems);
    assert!(problems[0].starts_with("a.yaml, document 2: "), "{problems:?}");
    assert!(problems[0].contains("line 7"), "{problems:?}");
    assert_eq!((problems.len(), problems[0].lines().count()), (1, 1), "{problems:?}");
}

#[test]
fn duplicate_keys_break_a_document() {
    let found = content("a.yaml", &service("a", "10.96.0.1").replace("kind: Service", "kind: Service\nkind: Service"));
    assert!(found.broken && found.objects.is_empty());
    assert!(found.problems[0].text.contains("duplicate"), "{}", found.problems[0]);
}

#[test]
fn a_problem_has_the_kind_of_its_object() {
    let broken = |api_version: &str, kind: &str| {
        format!("---\napiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x, nonsense: 1}}\n")
    };
    for (text, expected) in [
        (broken("v1", "Service"), "Service"),
        (broken("v1", "Node"), "Node"),
        (broken("discovery.k8s.io/v1", "EndpointSlice"), "EndpointSlice"),
        (broken("networking.k8s.io/v1", "ServiceCIDR"), "ServiceCIDR"),
        ("[".to_owned(), "unknown"),
        (broken("v1", "Node") + "---\n[", "unknown"),
    ] {
        let problems = content("a.yaml", &text).problems;
        assert_eq!(problems.last().and_then(|problem| problem.kind), Some(expected), "{text}: {problems:?}");
        assert!(expected == "unknown" || crate::source::KINDS.contains(&expected), "{expected}");
    }
}

#[test]
fn unknown_fields_are_reported_and_left_out() {
    let text =
        service("a", "10.96.0.1").replace("port: 80", "port: 80, prot: TCP").replace("spec: {", "spec: {foo: 1, ");
    let found = content("a.yaml", &text);
    assert_eq!(objects(&found), ["+demo/a 10.96.0.1"]);
    assert!(!found.broken);
    assert_eq!(
        texts(&found.problems),
        [
            "a.yaml, document 1: spec.foo: unknown field; ignored",
            "a.yaml, document 1: spec.ports[0].prot: unknown field; ignored"
        ]
    );
}

#[test]
fn problems_of_an_object_name_file_and_document() {
    let text = service("a", "10.96.0.1").replace("spec: {", "spec: {externalIPs: [203.0.113.1, 300.1.1.1], ");
    assert_eq!(
        texts(&content("a.yaml", &text).problems),
        ["a.yaml, document 1: Service demo/a: spec.externalIPs[1]: \"300.1.1.1\" is not an IP address; ignored"]
    );
}

#[test]
fn lists_hold_objects_of_any_or_one_kind() {
    let json = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 1}]}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "b"}, "spec": {"ports": "x"}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}},
        {"metadata": {"name": "unknown"}}
    ]});
    let found = content("a.json", &json.to_string());
    assert_eq!(objects(&found), ["+default/a 10.96.0.1", "+node n"]);
    assert!(found.broken);
    let problems = texts(&found.problems);
    assert!(
        problems[0].starts_with("a.json, document 1: items[1].spec.ports: invalid type: string \"x\""),
        "{problems:?}"
    );
    assert_eq!(problems[1], "a.json, document 1: items[3].apiVersion: missing");

    let typed = "apiVersion: v1\nkind: ServiceList\nitems:\n- {metadata: {name: a}, spec: {clusterIP: 10.96.0.1, ports: [{port: 1}]}}\n";
    assert_eq!(objects(&content("a.yaml", typed)), ["+default/a 10.96.0.1"]);
    for (api, kind, word) in [
        ("discovery.k8s.io/v1", "EndpointSliceList", "-slice default/a"),
        ("v1", "NodeList", "+node a"),
        ("networking.k8s.io/v1", "ServiceCIDRList", "+cidr a"),
    ] {
        let text = format!("apiVersion: {api}\nkind: {kind}\nitems: [{{metadata: {{name: a}}}}]\n");
        assert_eq!(objects(&content("a.yaml", &text)), [word]);
    }
    assert!(content("a.yaml", "apiVersion: v1\nkind: ServiceList\nitems: null\n").problems.is_empty());
    assert!(content("a.yaml", "apiVersion: v1\nkind: ConfigMapList\nitems: 7\n").problems.is_empty());
    assert!(content("a.yaml", "apiVersion: v1\nkind: List\nitems: 7\n").broken);
}

#[test]
fn a_long_list_is_read_in_its_order_whatever_is_wrong_with_some_items() {
    // Two threads decode a list of this length.
    const ITEMS: usize = 5_000;
    let item = |n: usize| {
        let mut item = serde_json::json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("s{n}"), "namespace": "demo"},
            "spec": {"clusterIP": "10.96.0.1", "selector": {"app": "x"}, "ports": [{"port": 1, "targetPort": "http"}]},
        });
        match n % 1_000 {
            7 => item["spec"]["ports"][0]["port"] = "x".into(),
            8 => item["spec"]["nonsense"] = 1.into(),
            9 => item["spec"]["selector"] = 5.into(),
            10 => item["metadata"] = serde_json::json!({"name": format!("s{n}")}),
            11 => item["spec"]["externalIPs"] = serde_json::json!(["x"]),
            _ => {}
        }
        item
    };
    let items: Vec<_> = (0..ITEMS).map(item).collect();
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items});
    let long = content("a.json", &list.to_string());

    let expected = (0..ITEMS).filter(|n| ![7, 9].contains(&(n % 1_000))).map(|n| {
        let namespace = if n % 1_000 == 10 { "default" } else { "demo" };
        format!("+{namespace}/s{n} 10.96.0.1")
    });
    assert_eq!(objects(&long), expected.collect::<Vec<_>>());
    let problems = (0..ITEMS).step_by(1_000).flat_map(|n| {
        let at = |n: usize, text: &str| format!("a.json, document 1: items[{n}].{text}");
        let ip = format!(
            "a.json, document 1: Service demo/s{}: spec.externalIPs[0]: \"x\" is not an IP address; ignored",
            n + 11
        );
        [
            at(n + 7, "spec.ports[0].port: invalid type: string \"x\", expected i32"),
            at(n + 8, "spec.nonsense: unknown field; ignored"),
            at(n + 9, "spec.selector: invalid type: integer `5`, expected a map"),
            ip,
        ]
    });
    assert_eq!(texts(&long.problems), problems.collect::<Vec<_>>());
    assert!(long.broken && long.problems.iter().all(|problem| problem.kind == Some("Service")));
}

#[test]
fn a_panic_while_two_threads_read_a_list_ends_both() {
    let items: Vec<_> = (0..20_000)
        .map(|n| {
            serde_json::json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("s{n}"), "namespace": "demo"}, "spec": {"ports": [{"port": 1}]}})
        })
        .collect();
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let (ended, end) = channel();
    thread::spawn(move || {
        let read = || {
            let mut take = |_| panic!("this object cannot be taken");
            decode(&Path::new("a.json").into(), list.clone().into_bytes(), &mut Default::default(), &mut take);
        };
        ended.send(catch_unwind(read).is_err())
    });
    assert_eq!(end.recv_timeout(Duration::from_secs(60)), Ok(true));
}

#[test]
fn what_is_no_object_is_an_error() {
    assert_eq!(texts(&content("a.yaml", "- 1\n").problems), ["a.yaml, document 1: not an object"]);
    assert_eq!(texts(&content("a.yaml", "a: 1\n").problems), ["a.yaml, document 1: apiVersion: missing"]);
    assert_eq!(texts(&content("a.yaml", "apiVersion: v1\n").problems), ["a.yaml, document 1: kind: missing"]);
    assert!(content("a.yaml", "").problems.is_empty() && !content("a.yaml", "").broken);
}

#[test]
fn json_files_hold_one_value_or_several() {
    let one = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}"#;
    let found = content("a.json", &format!("\u{feff}{one}\n{one}\n{{oops"));
    assert_eq!(found.objects.iter().map(|object| object.document).collect::<Vec<_>>(), [1, 2]);
    assert!(found.broken);
    assert!(found.problems[0].to_string().starts_with("a.json, document 3: key must be a string at line 3"));
}

#[test]
fn text_must_be_utf_8() {
    let found = content_of_bytes("a.yaml", b"a: \xff");
    assert!(found.broken);
    assert!(found.problems[0].to_string().starts_with("a.yaml: not UTF-8 text"), "{}", found.problems[0]);
}

#[test]
fn names_have_their_maximal_length() {
    assert_eq!(content("a.yaml", &service(&"a".repeat(253), "10.96.0.1")).objects.len(), 1);
    let over = content("a.yaml", &service(&"a".repeat(254), "10.96.0.1"));
    assert_eq!((over.objects.len(), over.problems.len(), over.broken), (0, 1, false));
}

#[test]
fn long_lists_fit_the_budget_of_the_parser() {
    let item = "- {metadata: {name: x}, spec: {clusterIP: 10.96.0.1, ports: [{port: 1}]}}\n";
    let text = format!("apiVersion: v1\nkind: ServiceList\nitems:\n{}", item.repeat(20_000));
    let found = content("a.yaml", &text);
    assert_eq!((found.objects.len(), texts(&found.problems)), (20_000, vec![]));
}

#[test]
fn aliases_may_save_typing_but_not_grow_without_bound() {
    let anchored = "x: &labels {a: '1', b: '2', c: '3', d: '4', e: '5', f: '6'}\n";
    let uses: String = (0..50).map(|n| format!("y{n}: *labels\n")).collect();
    let found = content("a.yaml", &format!("{}{anchored}{uses}", service("web", "10.96.0.1")));
    assert_eq!(objects(&found), ["+demo/web 10.96.0.1"]);

    let ten = |alias: char| vec![format!("*{alias}"); 10].join(",");
    let doubled: String = ('b'..='i').map(|name| format!("{name}: &{name} [{}]\n", ten(before(name)))).collect();
    let bomb = format!("a: &a [x]\n{doubled}---\n{}", service("web", "10.96.0.1"));
    let found = content("a.yaml", &bomb);
    assert_eq!(objects(&found), ["+demo/web 10.96.0.1"], "the other document counts");
    assert!(texts(&found.problems)[0].starts_with("a.yaml, document 1: "), "{:?}", found.problems);
}

fn before(name: char) -> char {
    char::from_u32(u32::from(name) - 1).unwrap()
}
