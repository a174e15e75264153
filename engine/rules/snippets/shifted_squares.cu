//: before
$T $shift = $zero, $offsets = $zero, $squares = $zero;
int $count = 0;
//: each
const $T $value = $element;
$shift = $count == 0 ? $value : $shift;
++$count;
const $T $offset = $value - $shift;
$offsets += $offset;
$squares += $offset * $offset;
//: instead
const $T $moved = $reference - $shift;
$target += $open$squares - $two * $moved * $offsets + $count * $moved * $moved$close;
