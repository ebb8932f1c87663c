//! Delta debugging: finds a small part of a trace that still fails in the same way.

use super::trace::{Step, Trace};

/// Leaves out steps as long as `fails` returns true for the rest. Calls `fails` at most `limit`
/// times.
pub fn shrink(trace: &Trace, limit: usize, mut fails: impl FnMut(&Trace) -> bool) -> Trace {
    let mut steps = trace.steps.clone();
    let with = |steps: &[Step]| Trace { steps: steps.to_vec(), ..trace.clone() };
    let mut tries = 0;
    let mut part = steps.len().div_ceil(2).max(1);
    loop {
        let mut from = 0;
        let mut smaller = false;
        while from < steps.len() && tries < limit {
            let mut less = steps.clone();
            less.drain(from..(from + part).min(steps.len()));
            tries += 1;
            if fails(&with(&less)) {
                steps = less;
                smaller = true;
            } else {
                from += part;
            }
        }
        if tries >= limit || (part == 1 && !smaller) {
            return with(&steps);
        }
        if part > 1 {
            part = part.div_ceil(2);
        }
    }
}

#[test]
fn the_smallest_failing_part_is_found() {
    let text: String = (0..40).map(|nth| format!("0 append f {nth}\n")).collect();
    let trace = Trace::parse(&text);
    let has = |trace: &Trace, nth: u32| trace.to_string().contains(&format!("f {nth}\n"));
    let shrunk = shrink(&trace, 1000, |part| has(part, 3) && has(part, 29));
    assert_eq!(shrunk.to_string(), "machines 2\ntool syncthing\n0 append f 3\n0 append f 29\n");
}
