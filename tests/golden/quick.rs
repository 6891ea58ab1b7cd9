//! The quick way to render against the template engine: the same text wherever it gives one.
//!
//! Over the recorded variables, bodies and requests, and over conversations put together at random, with values of
//! every kind where templates expect others. Each set prints how many renders of each template the quick way took.

use std::cell::RefCell;
use std::collections::BTreeMap;

use kvroute::conform::cases::CaseFile;
use kvroute::request::json::{Json, parse, to_json_text};
use kvroute::request::{Api, ApiPaths, Body, EngineFlags, Renderer};
use kvroute::template::{Fallback, RenderError, Template, TemplateSource, Way, render_by};

use crate::conversations::{Random, conversation};
use crate::data;
use crate::engine::{plain_source, raw_bodies};
use crate::jinja::{CLOCK, templates, variables};

/// The templates of the models that the goals of speed are set for.
const POPULAR: [&str; 4] = ["npm-qwen3", "npm-llama3_1", "npm-gemma3", "npm-deepseek_v3"];

/// What became of the renders of one template.
#[derive(Debug, Default)]
struct Taken {
    quick: usize,
    /// The engine gave a text, the quick way none.
    left: usize,
    failed: usize,
    reasons: BTreeMap<&'static str, usize>,
}

impl Taken {
    fn add(&mut self, case: &str, quick: &Result<String, Fallback>, full: &Result<String, RenderError>) {
        match (quick, full) {
            (Ok(quick), Ok(full)) => {
                let same = quick.bytes().zip(full.bytes()).take_while(|(a, b)| a == b).count();
                let tail =
                    |text: &str| String::from_utf8_lossy(&text.as_bytes()[same.saturating_sub(40)..]).into_owned();
                assert!(
                    quick == full,
                    "{case}: at byte {same}\n  engine {:.120?}\n  quick  {:.120?}",
                    tail(full),
                    tail(quick)
                );
                self.quick += 1;
            }
            (Ok(quick), Err(error)) => panic!("{case}: the engine fails ({error}), the quick way gives {quick:.200?}"),
            (Err(Fallback(reason)), Ok(_)) => {
                self.left += 1;
                *self.reasons.entry(reason).or_default() += 1;
            }
            (Err(_), Err(_)) => self.failed += 1,
        }
    }
}

/// Prints the table of a set and returns what was taken of the popular templates.
fn say(set: &str, all: &BTreeMap<String, Taken>) {
    let sum = |count: fn(&Taken) -> usize| all.values().map(count).sum::<usize>();
    let (quick, left, failed) = (sum(|taken| taken.quick), sum(|taken| taken.left), sum(|taken| taken.failed));
    data::say(&format!("quick {set}: {quick} taken, {left} left to the engine, {failed} failed in both"));
    for (name, taken) in all {
        let mut reasons: Vec<_> = taken.reasons.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let reasons: Vec<String> = reasons.iter().take(3).map(|(reason, count)| format!("{reason} {count}")).collect();
        data::say(&format!("  {name:52} {:5} {:5}  {}", taken.quick, taken.left, reasons.join(", ")));
    }
}

fn popular_are_quick(all: &BTreeMap<String, Taken>, least: usize) {
    for name in POPULAR {
        let Some(taken) = all.get(name) else { panic!("{name} is missing") };
        assert!(taken.quick >= least, "{name}: {taken:?}");
        assert!(taken.left * 20 <= taken.quick, "{name}: {taken:?}");
    }
}

#[test]
fn recorded_variables() {
    let (Some(dir), Some(templates)) = (data::dir("template-golden"), templates()) else { return };
    let inputs: Vec<Json> = data::lines(&dir.join("jinja_level.inputs.jsonl"))
        .iter()
        .map(|line| parse(line.as_bytes()).unwrap().as_map().unwrap().get("vars").unwrap().clone())
        .collect();
    let mut all = BTreeMap::new();
    for (name, source) in &templates {
        let Ok(template) = Template::compile(source) else { continue };
        let taken: &mut Taken = all.entry(name.clone()).or_default();
        for (at, input) in inputs.iter().enumerate() {
            let quick = template.render_quickly(&variables(input), CLOCK);
            taken.add(&format!("{name} {at}"), &quick, &template.render_in_full(variables(input), CLOCK));
        }
    }
    say("recorded variables", &all);
    popular_are_quick(&all, 30);

    let vars = parse(&std::fs::read(dir.join("quirks.vars.json")).unwrap()).unwrap();
    let mut taken = Taken::default();
    for line in data::lines(&dir.join("quirks.jsonl")) {
        let record = data::record(&line);
        let source = record["src"].as_str().unwrap();
        let Ok(template) = Template::compile(source) else { continue };
        let quick = template.render_quickly(&variables(&vars), CLOCK);
        taken.add(source, &quick, &template.render_in_full(variables(&vars), CLOCK));
    }
    assert!(taken.quick > 50, "{taken:?}");
    say("quirks", &BTreeMap::from([("quirks".to_owned(), taken)]));
}

thread_local! {
    static TAKEN: RefCell<Taken> = RefCell::default();
}

fn observer(quick: &Result<String, Fallback>, full: &Result<String, RenderError>) {
    TAKEN.with_borrow_mut(|taken| taken.add("a body", quick, full));
}

/// What becomes of the renders of these requests.
fn observed(work: impl FnOnce()) -> Taken {
    TAKEN.take();
    render_by(Way::Both(observer));
    work();
    render_by(Way::Quick);
    TAKEN.take()
}

#[test]
fn recorded_bodies() {
    let (Some(dir), Some(templates)) = (data::dir("template-golden"), templates()) else { return };
    let bodies = raw_bodies(&dir.join("vllm_level.inputs.jsonl"));
    let flags = EngineFlags {
        enable_auto_tool_choice: true,
        tool_call_parser: Some("any".to_owned()),
        ..EngineFlags::default()
    };
    let mut all = BTreeMap::new();
    for (name, source) in &templates {
        let Ok(renderer) = Renderer::new(plain_source(source), &flags) else { continue };
        let taken = observed(|| {
            for body in bodies.values() {
                let Ok(body) = Body::parse(body.as_bytes()) else { continue };
                let _ = renderer.prepare(Api::ChatCompletions, &body, CLOCK.unix_seconds);
            }
        });
        all.insert(name.clone(), taken);
    }
    say("recorded bodies", &all);
    popular_are_quick(&all, 30);
}

#[test]
fn recorded_requests_of_the_models() {
    let Some(dir) = data::dir("golden") else { return };
    let mut all = BTreeMap::new();
    for name in POPULAR {
        let name = name.strip_prefix("npm-").unwrap();
        let Some(models) = data::tokenizer(name) else { return };
        let file = CaseFile::read(&dir.join(format!("{name}.jsonl"))).unwrap_or_else(|error| panic!("{error:#}"));
        let config = std::fs::read_to_string(models.join("tokenizer_config.json")).unwrap();
        let source = TemplateSource::from_files(&data::record(&config), None, None, None).unwrap();
        let renderer = Renderer::new(source, &file.meta.flags(None).unwrap()).unwrap();
        let taken = observed(|| {
            for case in &file.cases {
                let Ok(body) = Body::parse(case.body.as_bytes()) else { continue };
                if let Some(api) = Api::of_check(&case.endpoint, &ApiPaths::default()) {
                    let _ = renderer.prepare(api, &body, 1_796_040_000);
                }
            }
        });
        all.insert(format!("npm-{name}"), taken);
    }
    say("recorded requests", &all);
    popular_are_quick(&all, 30);
    // These are what users send: none may take the slow way.
    assert!(all.values().all(|taken| taken.left == 0), "{all:?}");
}

#[test]
fn conversations_put_together_at_random() {
    let Some(templates) = templates() else { return };
    let each = if std::env::var_os("KVROUTE_LONG_TESTS").is_some() { 20_000 } else { 150 };
    let mut all = BTreeMap::new();
    for (number, (name, source)) in templates.iter().collect::<BTreeMap<_, _>>().into_iter().enumerate() {
        let Ok(template) = Template::compile(source) else { continue };
        let taken: &mut Taken = all.entry(name.clone()).or_default();
        for case in 0..each {
            let mut random = Random::of_case(number * 1_000_003 + case);
            let context = conversation(&mut random, case % 2 == 1);
            let quick = template.render_quickly(&variables(&context), CLOCK);
            let full = template.render_in_full(variables(&context), CLOCK);
            let shown = if quick.as_ref().ok() == full.as_ref().ok() { String::new() } else { to_json_text(&context) };
            taken.add(&format!("{name} {case} {shown}"), &quick, &full);
        }
    }
    say("conversations at random", &all);
    let (quick, left) = all.values().fold((0, 0), |(quick, left), taken| (quick + taken.quick, left + taken.left));
    assert!(quick > left, "{quick} taken, {left} left");
}

/// Corners of scopes, loops, slices and values, where the two ways could come apart.
const CORNERS: &[&str] = &[
    "{% for k, v in d|items %}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ k }}{{ v }}{% endfor %}",
    "{% for k, v in d.items() %}{{ loop.last }}{{ loop.length }}{{ k }}{% endfor %}{{ d.items()|length }}",
    "{% for k in d %}{{ k }}{{ loop.nextitem }}{{ loop.previtem }}{{ loop.last }}{% endfor %}{{ d|list }}",
    "{% for k in d.keys() %}{{ k }}{% endfor %}{% for v in d.values() %}{{ v }}{% endfor %}{{ d.keys()|list|length }}",
    "{% for x in l[1:] %}{{ x }}{{ loop.last }}{{ loop.length }}{{ loop.nextitem }}{% endfor %}{{ l[1:]|length }}",
    "{% for x in l[::-1] %}{{ x }}{{ loop.index0 }}{{ loop.revindex0 }}{{ loop.previtem }}{% endfor %}",
    "{{ l[-1] }}{{ l[-9] }}{{ l[9] }}{{ l[1:][0] }}{{ l[1:][-1] }}{{ l[1:][7] }}{{ l[::-1][0] }}{{ l[5:]|length }}",
    "{{ l[:-1]|length }}{{ l[-2:]|length }}{{ l[2:1]|length }}{{ l[-9:2]|length }}{{ l[1:-9]|length }}{{ l[:9]|length }}",
    "{{ s[1:] }}|{{ s[:-1] }}|{{ s[-3:] }}|{{ s[2:1] }}|{{ s[:99] }}|{{ s[99:] }}|{{ u[1:3] }}|{{ u[-2:] }}|{{ u[:-9] }}",
    "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}",
    "{% for i in l %}{% if i == 2 %}{% set y = i %}{% endif %}[{{ y }}]{% endfor %}{{ y }}",
    "{% set y = 'o' %}{% for i in l %}{% if i == 2 %}{% set y = i %}{% endif %}[{{ y }}]{% endfor %}{{ y }}",
    "{{ s }}{% set s = 5 %}{{ s }}{% for s in l %}{{ s }}{% endfor %}{{ s }}",
    "{% for a in l %}{% for b in l %}{{ a }}{{ b }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for a in l if a > 1 %}{{ a }}{{ loop.index }}{{ loop.length }}{% else %}none{% endfor %}",
    "{% for a in l if a > 9 %}{{ a }}{% else %}none{% set q = 1 %}{% endfor %}{{ q }}",
    "{% for a in l %}{% for b in l if b > loop.index %}{{ a }}{{ b }}{% endfor %}{% endfor %}",
    "{% for a in l %}{% if a == 2 %}{% continue %}{% endif %}{{ a }}{% endfor %}{% for a in l %}{% if a == 2 %}{% break %}{% endif %}{{ a }}{% endfor %}",
    "{% for a in nothing %}{{ a }}{% else %}empty{% endfor %}{% for a in [] %}{{ a }}{% else %}empty{% endfor %}",
    "{% set ns = namespace(a=1, b=l) %}{{ ns.a }}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.c }}{% set ns.c = 'x' %}{{ ns.c }}",
    "{% set ns = namespace(a=1) %}{% set other = ns %}{% set other.a = 2 %}{{ ns.a }}{{ ns is defined }}",
    "{% set ns = namespace(list=[]) %}{% for x in l %}{% set ns.list = ns.list + [x] %}{% endfor %}{{ ns.list|length }}{{ ns.list|join(',') }}{{ 2 in ns.list }}{{ ns.list[-1] }}",
    "{% macro m(a, b='x', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m(1, c=5) }}{{ m() }}",
    "{% macro m(a) %}{{ s }}{% set s = 1 %}{{ s }}{{ a }}{% endmacro %}{{ m(2) }}{{ s }}",
    "{% set t = 1 %}{% macro m() %}{{ t }}{% if a %}{% set t = 2 %}{% endif %}{{ t }}{% endmacro %}{{ m() }}{% set t = 3 %}{{ m() }}",
    "{% macro m() %}{{ late }}{% endmacro %}{{ m() }}{% set late = 1 %}{{ m() }}{% for late in l %}{{ m() }}{% endfor %}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}{{ f(30) }}",
    "{% macro g() %}{{ h() }}{% endmacro %}{% macro h() %}h{% endmacro %}{{ g() }}{{ g() + 'x' }}{{ (g() ~ 1)|length }}",
    "{% macro m(x) %}{% for i in x %}{{ loop.index }}{{ i }}{% endfor %}{% endmacro %}{% for k in l %}{{ m(l) }}{{ loop.index }}{% endfor %}",
    "{% macro m() %} a {% endmacro %}{{ m()|trim }}{{ m().strip() }}{% set c %}{{ m() }}{% endset %}{{ c|trim }}",
    "{% if false %}{% macro m() %}x{% endmacro %}{% endif %}{{ m is defined }}",
    "{% set c %}a{% set inner = 1 %}{{ s }}{% endset %}{{ c }}{{ inner }}",
    "{% with a = 1, b = l %}{{ a }}{{ b|length }}{% set e = 2 %}{{ e }}{% endwith %}{{ a }}{{ e }}",
    "{% with %}{% set s = 9 %}{{ s }}{% endwith %}{{ s }}",
    "{{ d.a }}{{ d['a'] }}{{ d.zzz }}{{ d['zzz'] }}{{ d.get('a') }}{{ d.get('z') }}{{ d.get('z', 7) }}{{ d.get(1) }}",
    "{{ d.items }}",
    "{{ d['items'] }}{{ d.keys is defined }}",
    "{{ nothing.x }}",
    "{{ none.x }}{{ 1 .x }}{{ s.x }}{{ l.x }}",
    "{{ nothing is defined }}{{ nothing is none }}{{ n is none }}{{ n is defined }}{{ s is string }}{{ d is mapping }}{{ l is sequence }}",
    "{{ d is sequence }}{{ s is sequence }}{{ d is iterable }}{{ s is iterable }}{{ n is iterable }}{{ 1 is iterable }}{{ nothing is iterable }}",
    "{{ l[1:] is sequence }}{{ l[1:] is iterable }}{{ l[1:] is mapping }}{{ d.items() is sequence }}{{ [1] is sequence }}",
    "{{ 1 is number }}{{ f is number }}{{ f is float }}{{ 1 is integer }}{{ b is boolean }}{{ b is true }}{{ b is false }}{{ s is true }}",
    "{{ b == 1 }}",
    "{{ 1 == '1' }}{{ n == nothing }}{{ n == none }}{{ s == 'Hi' }}{{ l == l }}{{ s != n }}{{ d == s }}{{ f == 1 }}",
    "{{ 'a' in d }}{{ 'a' in s }}{{ '' in s }}{{ 'i' in s }}{{ 2 in l }}{{ '2' in l }}{{ 'x' not in d }}{{ s in ['Hi', 1] }}{{ s in ('Hi', 1) }}{{ 1 in nothing }}",
    "{{ n or s }}{{ n and s }}{{ s and l|length }}{{ not n }}{{ [] or 'e' }}{{ d and 1 }}{{ nothing or 0 }}{{ f and 'f' }}",
    "{{ 'y' if s else 'n' }}{{ 'y' if nothing }}{{ ('y' if n) is defined }}{{ 'y' if n else nothing }}",
    "{{ n }}{{ b }}{{ f }}{{ l }}{{ d }}{{ nothing }}{{ 1 }}{{ -3 }}{{ not b }}{{ big }}{{ huge }}{{ small }}{{ zero }}",
    "{{ n|string }}{{ b|string }}{{ l|string }}{{ f|string }}{{ 1|string }}{{ l|trim }}{{ d|trim }}{{ n|trim }}{{ 5|trim }}",
    "{{ s ~ 1 ~ s }}{{ s + s }}{{ s ~ n }}",
    "{{ s ~ f }}",
    "{{ s + 1 }}",
    "{{ 'a' + 1 }}",
    "{{ 'a' + n }}",
    "{{ 1 + f }}",
    "{{ 7 // 2 }}{{ 7 % 2 }}{{ 2 - 3 }}{{ 2 * 3 }}{{ -7 // 2 }}{{ -7 % 2 }}{{ (0 - 7) // 2 }}{{ (0 - 7) % 2 }}{{ 7 % 3 == 1 }}",
    "{{ 3 > 2 }}{{ 3 >= 3 }}{{ 2 < 1 }}{{ 2 <= 2 }}{{ 1 < 2 < 3 }}",
    "{{ 'a' < 'b' }}",
    "{{ 9223372036854775807 + 1 }}",
    "{{ n|tojson }}{{ b|tojson }}{{ 3|tojson }}{{ f|tojson }}{{ s|tojson }}{{ l|tojson }}{{ d|tojson }}{{ u|tojson }}{{ small|tojson }}",
    "{{ d|tojson(indent=2) }}{{ d|tojson(ensure_ascii=true) }}{{ d|tojson(separators=(',', ':')) }}{{ d|tojson(sort_keys=true) }}{{ l|tojson(indent=none) }}",
    "{{ l[1:]|tojson }}{{ [1, 'a']|tojson }}{{ nothing|tojson }}",
    "{{ {'a': 1}|tojson }}",
    "{{ l|length }}{{ s|length }}{{ d|length }}{{ u|length }}{{ nothing|length }}",
    "{{ nothing|default('x') }}{{ n|default('x') }}{{ n|default('x', true) }}{{ ''|default('x', boolean=true) }}{{ s|d('x') }}{{ nothing|default }}",
    "{{ l|join }}{{ l|join('-') }}{{ ['a', n, b]|join(', ') }}{{ l[1:]|join('-') }}{{ l|first }}{{ l|last }}{{ l|list|length }}{{ d|items|list|length }}",
    "{{ s|upper }}{{ s|lower }}{{ u|upper }}{{ 'a.b'|replace('.', '') }}{{ 'aXbX'|replace('X', 'y') }}{{ s|safe }}",
    "{{ ms|selectattr('r', 'equalto', 'u')|list|length }}{{ ms|rejectattr('r', 'equalto', 'u')|map(attribute='c')|join('+') }}{{ ms|selectattr('x', 'defined')|list|length }}",
    "{{ ms|map(attribute='r')|list|join }}{{ ms|map(attribute='x')|join('-') }}{{ ['a ', ' b']|map('trim')|join }}{{ l|map('tojson')|join }}",
    "{% for i in range(3) %}{{ i }}{{ loop.last }}{% endfor %}{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}{% for i in range(1, 4) %}{{ i }}{% endfor %}{{ range(5)|length }}{% for i in range(2, 1) %}x{% endfor %}",
    "{{ '  a '.strip() }}|{{ 'xax'.strip('x') }}|{{ 'xyaxy'.lstrip('xy') }}|{{ 'a\\n\\n'.rstrip('\\n') }}|{{ ' a'.rstrip() }}|{{ '\\u3000a'.strip() }}",
    "{{ 'a,b,c'.split(',')[-1] }}{{ 'a,b'.split(',')|length }}{{ ''.split(',')|length }}{{ 'a b'.split() }}{{ 'a,b,c'.split(',', 1)[1] }}{{ ',a,'.split(',')|join('-') }}{{ u.split('ü')|length }}",
    "{{ s.startswith('H') }}{{ s.endswith(('i', 'x')) }}{{ s.upper() }}{{ s.find('i') }}{{ s.replace('H', 'J') }}{{ s.title() }}{{ s.nothing() }}",
    "{{ s[0] }}{{ s[-1] }}{{ s['x'] }}",
    "{{ l['x'] }}{{ d[1] }}{{ n[0] }}{{ l[n] }}",
    "{{ loop }}",
    "{% for x in l %}{% set outer = loop %}{{ outer.index }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.depth }}{% endfor %}",
];

#[test]
fn corners() {
    let vars = parse(
        r#"{"s": "Hi", "u": "aü😀ü z", "l": [1, 2, 3], "d": {"a": 1, "b": "x", "c": null, "items": 3}, "n": null, "b": true,
            "f": 1.5, "big": 123456789012345678901234567890, "huge": 1e22, "small": 1e-7, "zero": 0.0, "a": 1,
            "ms": [{"r": "u", "c": "1"}, {"r": "a", "c": "2", "x": 1}, {"r": "u", "c": "3"}]}"#
            .as_bytes(),
    )
    .unwrap();
    let mut taken = Taken::default();
    for source in CORNERS {
        let template = match Template::compile(source) {
            Ok(template) => template,
            Err(error) => panic!("{source}: {error}"),
        };
        let quick = template.render_quickly(&variables(&vars), CLOCK);
        taken.add(source, &quick, &template.render_in_full(variables(&vars), CLOCK));
    }
    assert!(taken.quick > 40, "{taken:?}");
    say("corners", &BTreeMap::from([("corners".to_owned(), taken)]));
}
