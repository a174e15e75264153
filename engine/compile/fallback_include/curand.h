// The types of cuRAND's host API are no device code.
#pragma once
