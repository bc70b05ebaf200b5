//! The search on made-up costs.

use super::*;

const SPACE: Space = Space {
    contexts: 1,
    memory: 80 << 30,
    has_delay: true,
    length_ns: 1_000_000_000,
};
const BASE: Costs = Costs {
    reserved: 1000 << 20,
    calls: 200,
    waited_ns: 20_000_000,
    needed: 500 << 20,
    failed: 0,
    bypasses: 0,
};

fn found(costs: impl Fn(&[Setting]) -> Costs) -> Answer {
    let answer = search(&SPACE, |set| Ok::<_, ()>(costs(set))).unwrap_or_else(|()| panic!());
    assert!(answer.replays <= MOST_REPLAYS, "{answer:?}");
    answer
}

#[test]
fn better_is_by_the_margin_and_worse_in_nothing() {
    let mib = |mib: u64| mib << 20;
    let is = |change: fn(&mut Costs)| {
        let mut new = BASE;
        change(&mut new);
        SPACE.is_better(&new, &BASE)
    };
    assert!(!is(|_| ()));
    assert!(is(|new| new.calls = 180) && !is(|new| new.calls = 181));
    assert!(is(|new| new.waited_ns = 18_000_000));
    assert!(!is(|new| new.waited_ns = 18_100_000));
    assert!(is(|new| new.reserved = 900 << 20));
    assert!(!is(|new| new.reserved = 901 << 20));
    assert!(!is(|new| (new.calls, new.reserved) = (0, 1100 << 20)));
    assert!(is(|new| (new.calls, new.reserved) = (0, 1099 << 20)));
    assert!(!is(|new| (new.calls, new.failed) = (0, 1)));
    assert!(!is(|new| (new.calls, new.bypasses) = (0, 1)));
    // Next to nothing is not a gain, whatever part it is.
    let small = Costs {
        reserved: mib(31),
        calls: 9,
        waited_ns: 900_000,
        ..BASE
    };
    let none = Costs {
        reserved: 0,
        calls: 0,
        waited_ns: 0,
        ..BASE
    };
    assert!(!SPACE.is_better(&none, &small));
    let long = Space {
        length_ns: 1_000_000_000_000,
        ..SPACE
    };
    let faster = Costs {
        waited_ns: 0,
        ..BASE
    };
    assert!(SPACE.is_better(&faster, &BASE) && !long.is_better(&faster, &BASE));
}

#[test]
fn a_second_variable_has_to_better_the_first() {
    let prealloc = |costs: &mut Costs, set: &[Setting]| {
        if set.iter().any(|set| set.variable == Variable::Prealloc) {
            costs.calls = 1;
        }
    };
    let inflight = |set: &[Setting]| {
        set.contains(&Setting {
            variable: Variable::Inflight,
            mib: 64,
        })
    };
    let one = found(|set| {
        let mut costs = BASE;
        prealloc(&mut costs, set);
        costs
    });
    assert_eq!(one.set.len(), 1);
    // Of equal values the first.
    assert_eq!(one.set[0].to_string(), "PREALLOC=1000M");
    assert_eq!((one.before, one.after.calls), (BASE, 1));
    let two = found(|set| {
        let mut costs = BASE;
        prealloc(&mut costs, set);
        if inflight(set) {
            costs.reserved /= 2;
        }
        costs
    });
    let text: Vec<String> = two.set.iter().map(Setting::to_string).collect();
    assert_eq!(text, ["PREALLOC=1000M", "INFLIGHT=64M"]);
}

#[test]
fn nothing_is_preallocated_beyond_the_limit() {
    let has = |set: &[Setting], variable| set.iter().any(|set| set.variable == variable);
    let answer = found(|set| {
        let mut costs = BASE;
        if has(set, Variable::Max) {
            costs.reserved /= 2;
        }
        if has(set, Variable::Prealloc) {
            costs.calls /= 2;
        }
        costs
    });
    let text: Vec<String> = answer.set.iter().map(Setting::to_string).collect();
    assert_eq!(text, ["PREALLOC=1000M"], "both limits are less");
    let small = found(|set| {
        let mut costs = BASE;
        if has(set, Variable::Max) {
            costs.reserved /= 4;
        }
        if has(set, Variable::Prealloc) {
            costs.calls /= 2;
        }
        costs
    });
    let text: Vec<String> = small.set.iter().map(Setting::to_string).collect();
    assert_eq!(text, ["MAX=500M", "PREALLOC=500M"]);
}

#[test]
fn each_context_has_its_share_and_no_device_more_than_it_has() {
    let values = |space: &Space| -> Vec<String> {
        let all = space.values(&BASE);
        let sized = |set: &&Setting| set.variable != Variable::Inflight;
        all.iter().filter(sized).map(Setting::to_string).collect()
    };
    let two = Space {
        contexts: 2,
        ..SPACE
    };
    let halves = ["PREALLOC=500M", "PREALLOC=276M", "PREALLOC=250M"];
    assert_eq!(values(&two)[..3], halves);
    let small = Space {
        memory: 300 << 20,
        ..SPACE
    };
    let capped = ["PREALLOC=300M", "PREALLOC=250M", "MAX=300M"];
    assert_eq!(values(&small), capped, "each value once");
}

#[test]
fn without_a_gain_nothing_is_set_and_every_value_is_tried() {
    let tried = std::cell::RefCell::new(Vec::new());
    let answer = found(|set| {
        tried.borrow_mut().extend_from_slice(set);
        BASE
    });
    assert!(answer.set.is_empty());
    assert_eq!(answer.before, answer.after);
    let text: Vec<String> = tried.borrow().iter().map(Setting::to_string).collect();
    assert_eq!(
        text,
        [
            "PREALLOC=1000M",
            "PREALLOC=550M",
            "PREALLOC=500M",
            "PREALLOC=250M",
            "INFLIGHT=32M",
            "INFLIGHT=64M",
            "INFLIGHT=128M",
            "INFLIGHT=512M",
            "INFLIGHT=1024M",
            "MAX=500M",
            "MAX=626M",
        ]
    );
}
