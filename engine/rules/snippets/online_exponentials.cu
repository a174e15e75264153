//: before
$T $partial = $zero;
//: each
const $T $value = $element;
const $T $ratio = $value == $largest ? $one : $smaller;
$partial = $value > $largest ? $partial * $ratio + $one : $partial + $ratio;
$largest = $value > $largest ? $value : $largest;
//: instead
$target += $partial$moved;
