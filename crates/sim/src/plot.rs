//! Draws charts as PNG files, with a built-in font, so that installed fonts do not matter.

use std::{fs, io::BufWriter, path::Path, sync::OnceLock};

use plotters::{
    coord::{
        Shift,
        ranged1d::{AsRangedCoord, Ranged, ValueFormatter},
    },
    prelude::*,
    style::{FontStyle, register_font},
};

use crate::{
    Error,
    chart::{Chart, Content, Panel, Series},
    error::Result,
};

const WIDTH: u32 = 1100;
/// The width of the legend, at the right of every panel.
const LEGEND_WIDTH: u32 = 250;
const PANEL_HEIGHT: u32 = 460;
const TITLE_HEIGHT: u32 = 44;
const FONT: &str = "sans-serif";

/// The colour of the series that the figure is about.
const OURS: RGBColor = RGBColor(213, 94, 0);

/// Colours that colour-blind people can distinguish (after Okabe and Ito).
const OTHERS: &[RGBColor] = &[
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(90, 90, 90),
];

/// Pale colours for computing, strong ones for waiting.
const KINDS: &[RGBColor] = &[
    RGBColor(189, 208, 226),
    RGBColor(222, 203, 218),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;
type Drawn<T = ()> = std::result::Result<T, String>;

fn problem(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Writes `NAME.png` into a directory, which is created if it is missing.
///
/// # Errors
/// If the file cannot be written.
pub fn draw(chart: &Chart, name: &str, title: &str, directory: &Path) -> Result<()> {
    let failed = |problem| Error::Plot { name: name.to_owned(), problem };
    register().map_err(failed)?;
    let file = |action| move |source| Error::File { action, path: directory.to_owned(), source };
    fs::create_dir_all(directory).map_err(file("make the directory"))?;
    let size = (WIDTH, TITLE_HEIGHT + PANEL_HEIGHT * chart.panels.len() as u32);

    let mut pixels = vec![255; size.0 as usize * size.1 as usize * 3];
    draw_on(&BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area(), chart, title).map_err(failed)?;
    let target = fs::File::create(directory.join(format!("{name}.png"))).map_err(file("make the PNG file in"))?;
    let mut encoder = png::Encoder::new(BufWriter::new(target), size.0, size.1);
    encoder.set_color(png::ColorType::Rgb);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels));
    written.map_err(|error| failed(error.to_string()))
}

fn register() -> Drawn {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let is_registered =
        REGISTERED.get_or_init(|| register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT).is_ok());
    if *is_registered { Ok(()) } else { Err("the built-in font cannot be read".to_owned()) }
}

fn draw_on(area: &Area, chart: &Chart, title: &str) -> Drawn {
    area.fill(&WHITE).map_err(problem)?;
    let (head, body) = area.split_vertically(TITLE_HEIGHT);
    head.draw(&Text::new(title.to_owned(), (24, 16), (FONT, 24).into_font().color(&BLACK))).map_err(problem)?;
    for (panel, area) in chart.panels.iter().zip(body.split_evenly((chart.panels.len(), 1))) {
        match &panel.content {
            Content::Lines { ticks, series } => lines(&area, panel, ticks, series)?,
            Content::Bars { ticks, parts } => bars(&area, panel, ticks, parts)?,
            Content::Timeline { rows, kinds, spans } => timeline(&area, panel, rows, kinds, spans)?,
        }
    }
    area.present().map_err(problem)
}

fn lines(area: &Area, panel: &Panel, ticks: &[String], series: &[Series]) -> Drawn {
    let values = || series.iter().flat_map(|series| &series.values).copied().filter(|value| value.is_finite());
    let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
    if panel.is_log {
        lines_over(area, panel, ticks, series, (least / 1.6..most * 1.8).log_scale())
    } else {
        lines_over(area, panel, ticks, series, 0.0..most * 1.12)
    }
}

fn lines_over<Y>(area: &Area, panel: &Panel, ticks: &[String], series: &[Series], y: Y) -> Drawn
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let last = ticks.len().saturating_sub(1) as f64;
    let mut chart = frame(area, panel, 64).build_cartesian_2d(-0.3..last + 0.3, y).map_err(problem)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_labels(8)
        .y_label_formatter(&|value| number(*value))
        .x_desc(&panel.x_label)
        .y_desc(&panel.y_label)
        .axis_desc_style((FONT, 18))
        .label_style((FONT, 16))
        .bold_line_style(BLACK.mix(0.15))
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(problem)?;
    let mut names = Vec::new();
    let mut colours = OTHERS.iter().cycle();
    // Draw ours last, so that it is on top.
    let mut ordered: Vec<_> = series.iter().collect();
    ordered.sort_by_key(|series| series.is_ours);
    for series in ordered {
        let (colour, width) = match series.is_ours {
            true => (OURS, 4),
            false => (*colours.next().unwrap_or(&OURS), 2),
        };
        let style = colour.stroke_width(width);
        let radius = width as i32 + 2;
        let points: Vec<_> = series.values.iter().enumerate().map(|(tick, &value)| (tick as f64, value)).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), style)).map_err(problem)?;
        names.push((series.name.as_str(), colour));
        chart
            .draw_series(points.into_iter().map(|point| Circle::new(point, radius, colour.filled())))
            .map_err(problem)?;
    }
    name_ticks(area, chart.plotting_area().get_pixel_range(), 0.3, ticks)?;
    legend(area, &names)
}

fn bars(area: &Area, panel: &Panel, ticks: &[String], parts: &[Series]) -> Drawn {
    let height = |tick: usize| parts.iter().map(|part| part.values[tick]).sum::<f64>();
    let most = (0..ticks.len()).map(height).fold(0.0, f64::max);
    let last = ticks.len() as f64;
    let mut chart = frame(area, panel, 80).build_cartesian_2d(-0.5..last - 0.5, 0.0..most * 1.12).map_err(problem)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_label_formatter(&|value| number(*value))
        .y_desc(&panel.y_label)
        .axis_desc_style((FONT, 18))
        .label_style((FONT, 16))
        .bold_line_style(BLACK.mix(0.15))
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(problem)?;
    let mut floors = vec![0.0; ticks.len()];
    for (part, &colour) in parts.iter().zip(KINDS) {
        let bar = |(tick, floor): (usize, &mut f64)| {
            let bottom = *floor;
            *floor += part.values[tick];
            Rectangle::new([(tick as f64 - 0.3, bottom), (tick as f64 + 0.3, *floor)], colour.filled())
        };
        let drawn: Vec<_> = floors.iter_mut().enumerate().map(bar).collect();
        chart.draw_series(drawn).map_err(problem)?;
    }
    name_ticks(area, chart.plotting_area().get_pixel_range(), 0.5, ticks)?;
    legend(area, &named(parts.iter().map(|part| part.name.as_str())))
}

fn timeline(
    area: &Area,
    panel: &Panel,
    rows: &[String],
    kinds: &[String],
    spans: &[(usize, usize, f64, f64)],
) -> Drawn {
    let end = spans.iter().map(|span| span.3).fold(0.0, f64::max);
    let width = |name: &String| area.estimate_text_size(name, &text_style()).map_or(0, |(width, _)| width);
    let widest = rows.iter().map(width).max().unwrap_or(0);
    let count = rows.len() as f64;
    let mut chart = frame(area, panel, 64)
        .set_label_area_size(LabelAreaPosition::Left, widest + 40)
        .build_cartesian_2d(0.0..end * 1.02, -count..0.0)
        .map_err(problem)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .x_desc(&panel.x_label)
        .x_label_formatter(&|value| number(*value))
        .axis_desc_style((FONT, 18))
        .label_style((FONT, 16))
        .bold_line_style(BLACK.mix(0.15))
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(problem)?;
    for (kind, &colour) in KINDS.iter().enumerate() {
        let of_kind = spans.iter().filter(|span| span.1 == kind);
        let stretch = |&(row, _, start, end): &(usize, usize, f64, f64)| {
            let top = -(row as f64) - 0.12;
            Rectangle::new([(start, top), (end, top - 0.76)], colour.filled())
        };
        chart.draw_series(of_kind.map(stretch)).map_err(problem)?;
    }
    for (row, name) in rows.iter().enumerate() {
        let (_, y) = chart.backend_coord(&(0.0, -(row as f64) - 0.5));
        let (_, base_y) = area.get_base_pixel();
        write(area, name, (24, y - base_y - 8))?;
    }
    legend(area, &named(kinds.iter().map(String::as_str)))
}

fn frame<'a, 'b>(area: &'a Area<'b>, panel: &Panel, below: u32) -> ChartBuilder<'a, 'b, BitMapBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.margin(16).margin_right(LEGEND_WIDTH).set_label_area_size(LabelAreaPosition::Left, 84);
    builder.set_label_area_size(LabelAreaPosition::Bottom, below);
    if !panel.title.is_empty() {
        builder.caption(&panel.title, (FONT, 20));
    }
    builder
}

/// Draws names under equally spaced ticks. The first and the last are `margin` of a space from the
/// ends of the axis.
fn name_ticks(
    area: &Area,
    (across, down): (std::ops::Range<i32>, std::ops::Range<i32>),
    margin: f64,
    ticks: &[String],
) -> Drawn {
    let (base_x, base_y) = area.get_base_pixel();
    let space = f64::from(across.end - across.start) / (ticks.len() as f64 - 1.0 + 2.0 * margin);
    for (tick, name) in ticks.iter().enumerate() {
        let middle = across.start - base_x + ((tick as f64 + margin) * space) as i32;
        for (line, text) in name.lines().enumerate() {
            let (width, _) = area.estimate_text_size(text, &text_style()).map_err(problem)?;
            write(area, text, (middle - width as i32 / 2, down.end - base_y + 10 + 20 * line as i32))?;
        }
    }
    Ok(())
}

fn named<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(&'a str, RGBColor)> {
    names.zip(KINDS.iter().copied()).filter(|(name, _)| !name.is_empty()).collect()
}

/// Draws names and colours at the right of a panel.
fn legend(area: &Area, names: &[(&str, RGBColor)]) -> Drawn {
    let left = (WIDTH - LEGEND_WIDTH) as i32 + 12;
    for (line, &(name, colour)) in names.iter().enumerate() {
        let top = 24 + 26 * line as i32;
        area.draw(&Rectangle::new([(left, top), (left + 22, top + 10)], colour.filled())).map_err(problem)?;
        write(area, name, (left + 30, top))?;
    }
    Ok(())
}

fn text_style() -> TextStyle<'static> {
    (FONT, 16).into_font().color(&BLACK)
}

fn write(area: &Area, text: &str, at: (i32, i32)) -> Drawn {
    area.draw(&Text::new(text.to_owned(), at, text_style())).map_err(problem)
}

/// Formats a number as short as possible.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 10.0 => 0,
        size if size >= 1.0 => 1,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if digits == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}
