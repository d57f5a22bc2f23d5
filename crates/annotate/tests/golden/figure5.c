/* Figure 5 of the paper, as far as it is C. */
#include <stdlib.h>

typedef struct _FttOct FttOct;

#pragma nvcp link(parent)
typedef struct _FttCell {
  double data;
  FttOct *parent, *children;
} FttCell;

#pragma nvcp link(parent)
struct _FttOct {
  unsigned level;
  FttCell *parent;
  FttCell cell[8];
};

void write_snapshot(FttCell *cell, const char *name);
int FttCellRefineFunc(FttCell *cell);

#pragma nvcp init(octree, 2)
void new_oct(double X) {
  FttCell *rootcell;
  rootcell = calloc(1, sizeof *rootcell);
  #pragma nvcp add_head(rootcell);
  rootcell->data = X;
  write_snapshot(rootcell, "snapshot");
  #pragma nvcp persistent(head, write_snapshot, FttCellRefineFunc);
}
