// Shapes and boxes: what can be said of them, what is refused, and that they come back.
//
//   shapes DIRECTORY            tests every call
//   shapes DIRECTORY save       saves version 1 of the session "c"
//   shapes DIRECTORY restore S  restores version 1 of the session S, which has the same regions

#include "check.h"

#include <stdbool.h>
#include <stdint.h>

// Three rows of nine, from the seventh on, and a tile of a plane in Fortran's order.
enum { ROWS = 3, COLUMNS = 4, TILE = 6 };
static const size_t field_shape[] = {ROWS, COLUMNS}, field_global[] = {9, COLUMNS}, field_offset[] = {6, 0};
static const size_t tile_shape[] = {2, 3}, tile_global[] = {4, 8}, tile_offset[] = {1, 2};

static double field[ROWS * COLUMNS];
static int32_t tile[TILE];
static int64_t step;

static outcrop_session *session_of(outcrop_store *store, const char *name) {
  outcrop_session *session;
  FINE(outcrop_store_session(store, name, &session));
  FINE(outcrop_session_protect(session, "field", field, ROWS * COLUMNS, OUTCROP_F64));
  FINE(outcrop_session_protect(session, "tile", tile, TILE, OUTCROP_I32));
  FINE(outcrop_session_protect(session, "step", &step, 1, OUTCROP_I64));
  FINE(outcrop_session_shape(session, "field", OUTCROP_ROW_MAJOR, 2, field_shape, field_global, field_offset));
  FINE(outcrop_session_shape(session, "tile", OUTCROP_COLUMN_MAJOR, 2, tile_shape, tile_global, tile_offset));
  FINE(outcrop_session_shape(session, "step", OUTCROP_ROW_MAJOR, 0, NULL, NULL, NULL));
  return session;
}

static void fill(void) {
  for (int at = 0; at < ROWS * COLUMNS; at++) field[at] = 10 + at;
  for (int at = 0; at < TILE; at++) tile[at] = 20 + at;
  step = 30;
}

static void check_filled(void) {
  for (int at = 0; at < ROWS * COLUMNS; at++) DEMAND(field[at] == 10 + at);
  for (int at = 0; at < TILE; at++) DEMAND(tile[at] == 20 + at);
  DEMAND(step == 30);
}

// Whether a region has this shape, of as many dimensions, and this box, or none.
static bool is(outcrop_session *session, const char *name, int order, size_t count, const size_t *shape, const size_t *global,
               const size_t *offset) {
  size_t found_shape[3] = {77, 77, 77}, found_global[3] = {77, 77, 77}, found_offset[3] = {77, 77, 77}, dimensions = 99;
  const size_t bytes = count * sizeof *shape;
  int found_order = -1, found = -1;
  FINE(outcrop_session_region_shape(session, 1, name, &found_order, &dimensions, found_shape, 3));
  FINE(outcrop_session_region_box(session, 1, name, &found, found_global, found_offset, 3));
  // Nothing is written beyond what there is.
  if (found_shape[count] != 77 || found_global[count] != 77 || found_offset[count] != 77) return false;
  if (found_order != order || dimensions != count || memcmp(found_shape, shape, bytes) != 0) return false;
  if (global == NULL) return found == 0 && found_global[0] == 77;
  return found == 1 && memcmp(found_global, global, bytes) == 0 && memcmp(found_offset, offset, bytes) == 0;
}

static void come_back(outcrop_session *session) {
  size_t dimensions = 0, numbers[2] = {77, 77}, more[2] = {77, 77};
  int order, found;
  fill();
  FINE(outcrop_session_save(session, 1));
  DEMAND(is(session, "field", OUTCROP_ROW_MAJOR, 2, field_shape, field_global, field_offset));
  DEMAND(is(session, "tile", OUTCROP_COLUMN_MAJOR, 2, tile_shape, tile_global, tile_offset));
  DEMAND(is(session, "step", OUTCROP_ROW_MAJOR, 0, field_shape, NULL, NULL));
  // As much as there is room for.
  FINE(outcrop_session_region_shape(session, 1, "field", &order, &dimensions, numbers, 1));
  DEMAND(dimensions == 2 && numbers[0] == ROWS && numbers[1] == 77);
  FINE(outcrop_session_region_shape(session, 1, "field", &order, &dimensions, NULL, 0));
  numbers[0] = 77;
  FINE(outcrop_session_region_box(session, 1, "field", &found, numbers, more, 1));
  DEMAND(found == 1 && numbers[0] == 9 && numbers[1] == 77 && more[0] == 6 && more[1] == 77);
  FINE(outcrop_session_region_box(session, 1, "field", &found, NULL, NULL, 0));
  DEMAND(found == 1);
}

static void refused(outcrop_session *session) {
  const size_t huge[] = {SIZE_MAX, SIZE_MAX}, other[] = {COLUMNS, ROWS}, outside[] = {7, 0}, many[33] = {0};
  size_t numbers[2], dimensions;
  int order, found = 7;
#define SHAPE(name, order, count, shape, global, offset) outcrop_session_shape(session, name, order, count, shape, global, offset)
  REFUSED(OUTCROP_USAGE, "NULL", SHAPE(NULL, 0, 2, field_shape, NULL, NULL));
  REFUSED(OUTCROP_USAGE, "there are: field", SHAPE("feild", 0, 2, field_shape, NULL, NULL));
  REFUSED(OUTCROP_USAGE, "OUTCROP_COLUMN_MAJOR", SHAPE("field", 2, 2, field_shape, NULL, NULL));
  REFUSED(OUTCROP_USAGE, "at most 32", SHAPE("field", 0, 33, many, NULL, NULL));
  REFUSED(OUTCROP_USAGE, "at most 32", SHAPE("field", 0, SIZE_MAX, many, NULL, NULL));
  REFUSED(OUTCROP_USAGE, "the shape is NULL", SHAPE("field", 0, 2, NULL, NULL, NULL));
  REFUSED(OUTCROP_USAGE, "or neither", SHAPE("field", 0, 2, field_shape, field_global, NULL));
  REFUSED(OUTCROP_USAGE, "or neither", SHAPE("field", 0, 2, field_shape, NULL, field_offset));
  REFUSED(OUTCROP_USAGE, "than can be counted", SHAPE("field", 0, 2, huge, NULL, NULL));
  REFUSED(OUTCROP_USAGE, "does not have 96 bytes", SHAPE("field", 0, 2, tile_shape, NULL, NULL));
  REFUSED(OUTCROP_USAGE, "not inside", SHAPE("field", 0, 2, field_shape, field_global, outside));
#undef SHAPE
  REFUSED(OUTCROP_MISSING, "only field", outcrop_session_region_shape(session, 1, "feild", &order, &dimensions, numbers, 2));
  REFUSED(OUTCROP_MISSING, "7", outcrop_session_region_shape(session, 7, "field", &order, &dimensions, numbers, 2));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_region_shape(session, 1, "field", NULL, &dimensions, numbers, 2));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_region_shape(session, 1, "field", &order, NULL, numbers, 2));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_region_shape(session, 1, "field", &order, &dimensions, NULL, 2));
  REFUSED(OUTCROP_MISSING, "only field", outcrop_session_region_box(session, 1, "feild", &found, numbers, numbers, 2));
  DEMAND(found == 0);
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_region_box(session, 1, "field", NULL, numbers, numbers, 2));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_region_box(session, 1, "field", &found, NULL, numbers, 2));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_region_box(session, 1, "field", &found, numbers, NULL, 2));

  // What was refused has changed nothing, and another shape or box is no place to restore to.
  memset(field, 0, sizeof field);
  FINE(outcrop_session_restore(session, 1));
  check_filled();
  FINE(outcrop_session_shape(session, "field", OUTCROP_ROW_MAJOR, 2, other, NULL, NULL));
  REFUSED(OUTCROP_USAGE, "nothing was changed", outcrop_session_restore(session, 1));
  const size_t elsewhere[] = {0, 0};
  FINE(outcrop_session_shape(session, "field", OUTCROP_ROW_MAJOR, 2, field_shape, field_global, elsewhere));
  REFUSED(OUTCROP_USAGE, "no rank has saved the element (0, 0)", outcrop_session_restore(session, 1));
  // The same array in the other order has its indices in reverse, and one that says nothing takes all.
  const size_t global[] = {COLUMNS, 9}, offset[] = {0, 6};
  FINE(outcrop_session_shape(session, "field", OUTCROP_COLUMN_MAJOR, 2, other, global, offset));
  FINE(outcrop_session_restore(session, 1));
  FINE(outcrop_session_protect(session, "field", field, ROWS * COLUMNS, OUTCROP_F64));
  FINE(outcrop_session_restore(session, 1));
  check_filled();
}

int main(int count, char **words) {
  DEMAND(count >= 2);
  char config[4200];
  snprintf(config, sizeof config, "host = '1 MiB'\ndir = '%s/store'\npin = false", words[1]);
  outcrop_store *store;
  FINE(outcrop_store_open(config, &store));
  outcrop_session *session = session_of(store, count == 4 ? words[3] : count == 3 ? "c" : "run");
  if (count == 2) {
    come_back(session);
    refused(session);
  } else if (count == 3) {
    fill();
    FINE(outcrop_session_save(session, 1));
  } else {
    FINE(outcrop_session_restore(session, 1));
    check_filled();
  }
  FINE(outcrop_session_close(session));
  FINE(outcrop_store_close(store));
  puts("shapes came back");
  return EXIT_SUCCESS;
}
