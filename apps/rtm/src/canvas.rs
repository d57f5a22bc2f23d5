//! A picture in memory: what shapes and letters are drawn on, and how it becomes a PNG file.

use crate::error::{Error, Result};
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::prelude::*;
use embedded_graphics::text::{Alignment, Baseline, Text, TextStyleBuilder};
use std::convert::Infallible;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// An RGB picture.
#[derive(Debug, Clone)]
pub(crate) struct Canvas {
    size: Size,
    pixels: Vec<Rgb888>,
}

impl Canvas {
    pub(crate) fn new(width: u32, height: u32, background: Rgb888) -> Self {
        Canvas { size: Size::new(width, height), pixels: vec![background; width as usize * height as usize] }
    }

    /// Sets one pixel; those outside of the picture are ignored.
    pub(crate) fn set(&mut self, at: Point, color: Rgb888) {
        if let (Ok(x), Ok(y)) = (u32::try_from(at.x), u32::try_from(at.y))
            && x < self.size.width
            && y < self.size.height
        {
            self.pixels[(y * self.size.width + x) as usize] = color;
        }
    }

    /// Writes text with its middle line at `at.y`.
    pub(crate) fn text(&mut self, text: &str, at: Point, alignment: Alignment, font: &MonoFont, color: Rgb888) {
        let style = TextStyleBuilder::new().alignment(alignment).baseline(Baseline::Middle).build();
        let drawn = Text::with_text_style(text, at, MonoTextStyle::new(font, color), style).draw(self);
        match drawn {
            Ok(_) => {}
            Err(never) => match never {},
        }
    }

    /// Writes text of any colour but white that runs upwards, centred at `at`.
    pub(crate) fn text_upwards(&mut self, text: &str, at: Point, font: &MonoFont, color: Rgb888) {
        let (width, height) = (text.len() as u32 * font.character_size.width, font.character_size.height);
        let mut line = Canvas::new(width, height, Rgb888::WHITE);
        line.text(text, Point::new(0, height as i32 / 2), Alignment::Left, font, color);
        for (i, pixel) in line.pixels.iter().enumerate().filter(|(_, pixel)| **pixel == color) {
            let (x, y) = (i as i32 % width as i32, i as i32 / width as i32);
            self.set(at + Point::new(y - height as i32 / 2, width as i32 / 2 - x), *pixel);
        }
    }

    /// Writes the picture as a PNG file.
    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        let failed = |source| Error::File { action: "write", path: path.to_owned(), source };
        let file = BufWriter::new(File::create(path).map_err(failed)?);
        let mut encoder = png::Encoder::new(file, self.size.width, self.size.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let bytes: Vec<u8> = self.pixels.iter().flat_map(|p| [p.r(), p.g(), p.b()]).collect();
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&bytes)?;
        writer.finish()?;
        Ok(())
    }
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        self.size
    }
}

impl DrawTarget for Canvas {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(&mut self, pixels: I) -> std::result::Result<(), Infallible> {
        for Pixel(at, color) in pixels {
            self.set(at, color);
        }
        Ok(())
    }
}
