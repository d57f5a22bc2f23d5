//! The picture of a migration: the velocity model and the image, true to scale, with axes and the
//! survey.

use crate::canvas::Canvas;
use crate::error::Result;
use crate::migrate::Migration;
use crate::model::Grid;
use embedded_graphics::mono_font::MonoFont;
use embedded_graphics::mono_font::ascii::{FONT_9X18, FONT_10X20};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::*;
use embedded_graphics::primitives::{PrimitiveStyle, Rectangle, Triangle};
use embedded_graphics::text::Alignment;
use std::path::Path;

const PAPER: Rgb888 = Rgb888::new(255, 255, 255);
const INK: Rgb888 = Rgb888::new(35, 38, 42);
const SHOT: Rgb888 = Rgb888::new(205, 32, 44);
const RECEIVER: Rgb888 = Rgb888::new(30, 100, 190);
const TITLE_FONT: &MonoFont = &FONT_10X20;
const FONT: &MonoFont = &FONT_9X18;

/// Around each panel: room for depths on the left, title and survey above, distances below, colour
/// bar on the right.
const LEFT: i32 = 76;
const ABOVE: i32 = 66;
const BELOW: i32 = 62;
const RIGHT: i32 = 96;
const RIGHT_PLAIN: i32 = 28;

/// Where the title and the legend are, relative to the top of a panel, and the narrowest panel that
/// has room for both.
const TITLE_LINE: i32 = -44;
const LEGEND_FROM: i32 = 560;

/// The widest that a picture gets, and the tallest that a panel does.
const WIDTH: i32 = 1600;
const PANEL_HEIGHT: f32 = 820.0;
/// Sections longer than this, relative to their depth, are drawn one below the other.
const STACKED_FROM: f32 = 2.6;

/// Amplitudes beyond this fraction of all are shown as the darkest and brightest grey.
const CLIP: f64 = 0.98;

/// Colours from slow to fast.
const VELOCITY_COLORS: [[u8; 3]; 9] = [
    [48, 62, 128],
    [38, 104, 158],
    [42, 146, 158],
    [84, 178, 132],
    [158, 202, 104],
    [226, 212, 92],
    [244, 172, 72],
    [226, 106, 62],
    [168, 40, 70],
];

/// Draws the velocity model beside (or above) the image of a migration and writes the picture as
/// PNG. A 3D model is shown by the vertical section along x through its first shot.
pub fn write(path: &Path, migration: &Migration, image: &[f32]) -> Result<()> {
    draw(migration, image).save(path)
}

fn draw(migration: &Migration, image: &[f32]) -> Canvas {
    let grid = migration.model().grid();
    let section_y = migration.survey().shots.first().map_or(0, |shot| shot[1]);
    let aspect = grid.extent(0) / grid.extent(2);
    let stacked = aspect > STACKED_FROM;
    let room = if stacked { WIDTH - LEFT - RIGHT } else { (WIDTH - 2 * LEFT - RIGHT - RIGHT_PLAIN) / 2 };
    let width = (room as f32).min(PANEL_HEIGHT * aspect).max(160.0);
    let size = Size::new(width as u32, ((width / aspect) as u32).clamp(80, 4000));
    let (panel_width, panel_height) = (size.width as i32, size.height as i32);

    let first = Point::new(LEFT, ABOVE);
    let (second, corner) = if stacked {
        let second = first + Point::new(0, panel_height + BELOW + ABOVE);
        (second, second + Point::new(panel_width + RIGHT, panel_height + BELOW))
    } else {
        let second = first + Point::new(panel_width + RIGHT + LEFT, 0);
        (second, second + Point::new(panel_width + RIGHT_PLAIN, panel_height + BELOW))
    };
    let mut canvas = Canvas::new(corner.x as u32, corner.y as u32, PAPER);

    let velocity = Section { grid, y: section_y, values: migration.model().velocity(), is_smooth: false };
    let range = (migration.model().velocity_min(), migration.model().velocity_max());
    let panel = Panel { area: Rectangle::new(first, size), migration, section_y };
    panel.fill(&mut canvas, &velocity, |v| velocity_color((v - range.0) / (range.1 - range.0).max(1.0)));
    panel.frame(&mut canvas, "Velocity model");
    panel.color_bar(&mut canvas, range);

    let gained = with_depth_gain(grid, image);
    let reflectivity = Section { grid, y: section_y, values: &gained, is_smooth: true };
    let clip = reflectivity.percentile(CLIP).max(f32::MIN_POSITIVE);
    let panel = Panel { area: Rectangle::new(second, size), migration, section_y };
    panel.fill(&mut canvas, &reflectivity, |v| grey(v / clip));
    let shots = migration.survey().shots.len();
    let title = format!("Reverse time migration, {shots} shot{}", if shots == 1 { "" } else { "s" });
    panel.frame(&mut canvas, &title);
    canvas
}

/// The image amplified in proportion to depth: makes up for what echoes lose on their long way back
/// to the surface, and quietens the surroundings of the sources.
fn with_depth_gain(grid: &Grid, image: &[f32]) -> Vec<f32> {
    let nz = grid.points[2];
    image.iter().enumerate().map(|(i, value)| value * (i % nz) as f32).collect()
}

/// A vertical section of an array over the grid.
struct Section<'a> {
    grid: &'a Grid,
    y: usize,
    values: &'a [f32],
    /// Whether values between grid points are interpolated; layers have sharp edges, waves do not.
    is_smooth: bool,
}

impl Section<'_> {
    /// The value between grid points: linearly interpolated, or that of the nearest one.
    fn at(&self, x: f32, z: f32) -> f32 {
        let [nx, _, nz] = self.grid.points;
        let (x, z) = (x.clamp(0.0, (nx - 1) as f32), z.clamp(0.0, (nz - 1) as f32));
        if !self.is_smooth {
            return self.values[self.grid.index([x.round() as usize, self.y, z.round() as usize])];
        }
        let (x0, z0) = (x as usize, z as usize);
        let (x1, z1) = ((x0 + 1).min(nx - 1), (z0 + 1).min(nz - 1));
        let value = |x, z| self.values[self.grid.index([x, self.y, z])];
        let (fx, fz) = (x.fract(), z.fract());
        let top = value(x0, z0) * (1.0 - fx) + value(x1, z0) * fx;
        let bottom = value(x0, z1) * (1.0 - fx) + value(x1, z1) * fx;
        top * (1.0 - fz) + bottom * fz
    }

    /// The magnitude that this fraction of the section stays below.
    fn percentile(&self, fraction: f64) -> f32 {
        let [nx, _, nz] = self.grid.points;
        let section = (0..nx).flat_map(|x| (0..nz).map(move |z| [x, self.y, z]));
        let mut magnitudes: Vec<f32> = section.map(|point| self.values[self.grid.index(point)].abs()).collect();
        let rank = ((magnitudes.len() - 1) as f64 * fraction) as usize;
        *magnitudes.select_nth_unstable_by(rank, f32::total_cmp).1
    }
}

/// One of the two pictures within the picture.
struct Panel<'a> {
    area: Rectangle,
    migration: &'a Migration,
    section_y: usize,
}

impl Panel<'_> {
    /// Colours every pixel by the average of the section over it.
    fn fill(&self, canvas: &mut Canvas, section: &Section, color: impl Fn(f32) -> Rgb888) {
        const SAMPLES: i32 = 3;
        let [nx, _, nz] = section.grid.points;
        let step_x = (nx - 1) as f32 / self.area.size.width as f32;
        let step_z = (nz - 1) as f32 / self.area.size.height as f32;
        for pixel in self.area.points() {
            let mut sum = 0.0;
            for i in 0..SAMPLES * SAMPLES {
                let within = |i: i32| (i as f32 + 0.5) / SAMPLES as f32;
                let x = ((pixel.x - self.area.top_left.x) as f32 + within(i % SAMPLES)) * step_x;
                let z = ((pixel.y - self.area.top_left.y) as f32 + within(i / SAMPLES)) * step_z;
                sum += section.at(x, z);
            }
            canvas.set(pixel, color(sum / (SAMPLES * SAMPLES) as f32));
        }
    }

    /// Draws the border, the axes, the title and the survey.
    fn frame(&self, canvas: &mut Canvas, title: &str) {
        let corner = self.area.top_left;
        let (width, height) = (self.area.size.width as i32, self.area.size.height as i32);
        border(canvas, &self.area);
        canvas.text(title, corner + Point::new(0, TITLE_LINE), Alignment::Left, TITLE_FONT, INK);

        let grid = self.migration.model().grid();
        let across = ticks(grid.extent(0) / 1000.0, width / 70);
        for (value, label) in across {
            let x = (value * 1000.0 / grid.extent(0) * (width - 1) as f32) as i32;
            rectangle(canvas, corner + Point::new(x, height), Size::new(1, 7), INK);
            canvas.text(&label, corner + Point::new(x, height + 19), Alignment::Center, FONT, INK);
        }
        canvas.text("Distance (km)", corner + Point::new(width / 2, height + 44), Alignment::Center, FONT, INK);

        let down = ticks(grid.extent(2) / 1000.0, height / 60);
        for (value, label) in down {
            let z = (value * 1000.0 / grid.extent(2) * (height - 1) as f32) as i32;
            rectangle(canvas, corner + Point::new(-8, z), Size::new(7, 1), INK);
            canvas.text(&label, corner + Point::new(-13, z), Alignment::Right, FONT, INK);
        }
        canvas.text_upwards("Depth (km)", corner + Point::new(-LEFT + 22, height / 2), FONT, INK);
        self.survey(canvas);
    }

    /// Marks receivers by a row of small marks on the surface and shots by triangles above it.
    fn survey(&self, canvas: &mut Canvas) {
        let corner = self.area.top_left;
        let (width, points) = (self.area.size.width as i32, self.migration.model().grid().points[0]);
        let column = |x: usize| x as i32 * (width - 1) / (points as i32 - 1).max(1);
        let survey = self.migration.survey();
        let mut free_from = i32::MIN;
        for receiver in survey.receivers.iter().filter(|point| on_section(point, self.section_y, &survey.receivers)) {
            let x = column(receiver[0]);
            // Receivers closer than marks can be told apart are shown by fewer marks.
            if x >= free_from {
                rectangle(canvas, corner + Point::new(x - 1, -7), Size::new(3, 5), RECEIVER);
                free_from = x + 8;
            }
        }
        for shot in &survey.shots {
            let tip = corner + Point::new(column(shot[0]), -9);
            triangle(canvas, tip);
        }
        if width >= LEGEND_FROM {
            self.legend(canvas, corner + Point::new(width - 208, TITLE_LINE));
        }
    }

    fn legend(&self, canvas: &mut Canvas, at: Point) {
        triangle(canvas, at + Point::new(7, 7));
        canvas.text("shots", at + Point::new(21, 0), Alignment::Left, FONT, INK);
        for i in 0..3 {
            rectangle(canvas, at + Point::new(96 + 8 * i, -2), Size::new(3, 5), RECEIVER);
        }
        canvas.text("receivers", at + Point::new(127, 0), Alignment::Left, FONT, INK);
    }

    /// Draws the scale of velocities to the right of the panel.
    fn color_bar(&self, canvas: &mut Canvas, (slowest, fastest): (f32, f32)) {
        let height = self.area.size.height as i32;
        let corner = self.area.top_left + Point::new(self.area.size.width as i32 + 16, 0);
        let bar = Rectangle::new(corner, Size::new(18, height as u32));
        for pixel in bar.points() {
            let up = 1.0 - (pixel.y - corner.y) as f32 / (height - 1) as f32;
            canvas.set(pixel, velocity_color(up));
        }
        border(canvas, &bar);
        canvas.text("km/s", corner + Point::new(9, -16), Alignment::Center, FONT, INK);
        let range = (fastest - slowest).max(1.0);
        for (value, label) in ticks(fastest / 1000.0, height / 30) {
            let up = (value * 1000.0 - slowest) / range;
            if (-0.001..=1.001).contains(&up) {
                let y = height - 1 - (up * (height - 1) as f32) as i32;
                rectangle(canvas, corner + Point::new(19, y), Size::new(6, 1), INK);
                canvas.text(&label, corner + Point::new(29, y), Alignment::Left, FONT, INK);
            }
        }
    }
}

/// True for receivers on the line of receivers that lies nearest to the section.
fn on_section(point: &[usize; 3], section_y: usize, all: &[[usize; 3]]) -> bool {
    let nearest = all.iter().map(|p| p[1].abs_diff(section_y)).min();
    Some(point[1].abs_diff(section_y)) == nearest
}

fn rectangle(canvas: &mut Canvas, corner: Point, size: Size, color: Rgb888) {
    for pixel in Rectangle::new(corner, size).points() {
        canvas.set(pixel, color);
    }
}

fn border(canvas: &mut Canvas, area: &Rectangle) {
    let outer = area.offset(1);
    let drawn = outer.into_styled(PrimitiveStyle::with_stroke(INK, 1)).draw(canvas);
    match drawn {
        Ok(()) => {}
        Err(never) => match never {},
    }
}

/// A triangle that points down to `tip`.
fn triangle(canvas: &mut Canvas, tip: Point) {
    let shape = Triangle::new(tip, tip + Point::new(-7, -13), tip + Point::new(7, -13));
    match shape.into_styled(PrimitiveStyle::with_fill(SHOT)).draw(canvas) {
        Ok(()) => {}
        Err(never) => match never {},
    }
}

/// Round values from 0 to `end`, at most about `count` of them, with their labels.
fn ticks(end: f32, count: i32) -> Vec<(f32, String)> {
    let rough = end / count.max(1) as f32;
    let power = 10_f32.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|s| s * power).find(|s| *s >= rough * 0.999).unwrap_or(rough);
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    (0..=(end / step * 1.0001) as usize)
        .map(|i| {
            let value = i as f32 * step;
            (value, format!("{value:.decimals$}"))
        })
        .collect()
}

/// Black for -1, white for 1.
fn grey(value: f32) -> Rgb888 {
    let level = (127.5 + 127.5 * value.clamp(-1.0, 1.0)) as u8;
    Rgb888::new(level, level, level)
}

/// The colour of a velocity between the slowest (0) and the fastest (1).
fn velocity_color(fraction: f32) -> Rgb888 {
    let last = VELOCITY_COLORS.len() - 1;
    let position = fraction.clamp(0.0, 1.0) * last as f32;
    let lower = (position as usize).min(last - 1);
    let weight = position - lower as f32;
    let mix = |i: usize| {
        let (a, b) = (f32::from(VELOCITY_COLORS[lower][i]), f32::from(VELOCITY_COLORS[lower + 1][i]));
        (a + (b - a) * weight).round() as u8
    };
    Rgb888::new(mix(0), mix(1), mix(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        let labels = |end, count| ticks(end, count).into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(4.79, 6), ["0", "1", "2", "3", "4"]);
        assert_eq!(labels(1.0, 5), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(30.0, 4), ["0", "10", "20", "30"]);
    }

    #[test]
    fn colours_reach_both_ends() {
        assert_eq!(velocity_color(0.0), Rgb888::new(48, 62, 128));
        assert_eq!(velocity_color(1.0), Rgb888::new(168, 40, 70));
        assert_eq!(grey(-7.0), Rgb888::new(0, 0, 0));
        assert_eq!(grey(7.0), Rgb888::new(255, 255, 255));
    }
}
