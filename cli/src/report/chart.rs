//! Charts as inline SVG. Their text is HTML around them, so that it keeps its
//! size when the picture is scaled to a phone's width.

use std::fmt::Write;

use gpupool::process::summary::time;

/// The first colour of charts, on white.
pub const BLUE: &str = "#1769aa";
/// The second.
pub const BROWN: &str = "#b3541e";

/// A line over time; each point is the lowest and the highest value of a
/// stretch of it.
pub struct Series {
    /// What it is, as text that needs no escaping.
    pub name: &'static str,
    /// Its class in the style sheet.
    pub class: &'static str,
    /// Its colour for renderers that do not apply the sheet inside of SVG.
    pub colour: &'static str,
    /// Whether the range of each stretch is shaded.
    pub has_band: bool,
    /// In the order of time, all series of a chart with as many.
    pub points: Vec<(f64, f64)>,
}

/// The least of some round numbers that is not below `most`, so that half of it
/// is round too: in powers of two for bytes, else of ten.
pub fn round_up(most: f64, bytes: bool) -> f64 {
    let steps: &[f64] = match bytes {
        true => &[1.0, 1.25, 1.5, 2.0],
        false => &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0],
    };
    if most <= 0.0 {
        return 0.0;
    }
    let power = match bytes {
        true => most.log2().floor().exp2(),
        false => 10f64.powf(most.log10().floor()),
    };
    let round = steps.iter().map(|step| step * power);
    round.into_iter().find(|top| *top >= most).unwrap_or(most)
}

/// A chart over `span_ns` from time 0; `unit` writes a value, which is one of
/// bytes or not. What is asked for must have at least one point.
pub fn over_time(series: &[Series], span_ns: u64, bytes: bool, unit: fn(f64) -> String) -> String {
    let most = series
        .iter()
        .flat_map(|series| series.points.iter().map(|point| point.1))
        .fold(0.0, f64::max);
    let most = round_up(most, bytes);
    let mut out = String::from("<figure><div class=\"chart\"><div class=\"scale\">");
    // Writing to a String cannot fail.
    for value in [most, most / 2.0, 0.0] {
        let _ = write!(out, "<span>{}</span>", unit(value));
    }
    let names: Vec<&str> = series.iter().map(|one| one.name).collect();
    let _ = write!(
        out,
        "</div><svg viewBox=\"0 0 1000 200\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{} over time\"><path class=\"grid\" fill=\"none\" stroke=\"#d6dde4\" \
         d=\"M0 0H1000M0 50H1000M0 100H1000M0 150H1000M0 200H1000\"/>",
        names.join(", ")
    );
    for one in series {
        let count = one.points.len();
        let y = |value: f64| 200.0 - 200.0 * if most > 0.0 { value / most } else { 0.0 };
        // A stretch of time is a step: two corners.
        let corners = |pick: fn(&(f64, f64)) -> f64| {
            let mut corners: Vec<String> = Vec::with_capacity(2 * count);
            for (at, point) in one.points.iter().enumerate() {
                let x = |at: usize| 1000.0 * at as f64 / count as f64;
                let height = y(pick(point));
                corners.push(format!("{:.1} {height:.1}", x(at)));
                corners.push(format!("{:.1} {height:.1}", x(at + 1)));
            }
            corners
        };
        let high = corners(|point| point.1);
        let mut low = corners(|point| point.0);
        low.reverse();
        // Shades on each other would not tell whose they are.
        if one.has_band {
            let _ = write!(
                out,
                "<path class=\"band {0}\" fill=\"{1}\" opacity=\"0.25\" d=\"M{2}L{3}Z\"/>",
                one.class,
                one.colour,
                high.join("L"),
                low.join("L"),
            );
        }
        let _ = write!(
            out,
            "<path class=\"line {0}\" fill=\"none\" stroke=\"{1}\" stroke-width=\"1.5\" d=\"M{2}\"/>",
            one.class,
            one.colour,
            high.join("L"),
        );
    }
    out.push_str("</svg><div class=\"times\">");
    for at in [0, span_ns / 2, span_ns] {
        let at = if at == 0 { String::from("0") } else { time(at) };
        let _ = write!(out, "<span>{at}</span>");
    }
    out.push_str("</div></div><figcaption>");
    for one in series {
        let _ = write!(
            out,
            "<span class=\"key {}\">{}</span> ",
            one.class, one.name
        );
    }
    out.push_str("</figcaption></figure>\n");
    out
}

/// A bar that fills `part` of `whole`, for the cell of a table.
pub fn bar(part: u64, whole: u64) -> String {
    let width = 100.0 * part as f64 / whole.max(1) as f64;
    format!(
        "<svg class=\"bar\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect width=\"{width:.1}\" height=\"10\" fill=\"{BLUE}\"/></svg>"
    )
}

#[cfg(test)]
mod tests {
    use super::round_up;

    #[test]
    fn scales_end_at_round_numbers() {
        let mib = f64::from(1 << 20);
        for (most, bytes, top) in [
            (0.0, false, 0.0),
            (141_523.0, false, 200_000.0),
            (7.0, false, 8.0),
            (100.0, false, 100.0),
            (22.7 * mib, true, 24.0 * mib),
            (64.0 * mib, true, 64.0 * mib),
        ] {
            assert_eq!(round_up(most, bytes), top, "{most}");
        }
    }
}
